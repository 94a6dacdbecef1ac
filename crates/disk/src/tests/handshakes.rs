//! The answers to options, right ones and wrong ones.

use super::*;
use crate::protocol::*;
use crate::testing::{connection, option, request};

const BOTH: u32 = 3;

fn hello(flags: u32) -> Vec<u8> {
    flags.to_be_bytes().to_vec()
}

/// The data of INFO and GO.
fn go(name: &str, wants: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((wants.len() as u16).to_be_bytes());
    wants.iter().for_each(|w| data.extend(w.to_be_bytes()));
    data
}

/// The data of the options about contexts.
fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend(query.as_bytes());
    }
    data
}

/// Replies to options: number and kind, and the data.
fn replies(mut said: &[u8]) -> Vec<((u32, u32), Vec<u8>)> {
    assert_eq!(&said[..16], b"NBDMAGICIHAVEOPT");
    said = &said[18..];
    let mut found = Vec::new();
    let mut fields = Fields(said);
    while fields.u64() == Some(OPTION_REPLY_MAGIC) {
        let (number, kind) = (fields.u32().unwrap(), fields.u32().unwrap());
        found.push(((number, kind), fields.counted().unwrap().to_vec()));
    }
    found
}

fn kinds(sent: &[Vec<u8>]) -> Vec<(u32, u32)> {
    let disk = disk(MIB, 4 * MIB);
    replies(&connection(&disk, &sent.concat())).into_iter().map(|(kinds, _)| kinds).collect()
}

#[test]
fn an_export_is_described_and_entered() {
    let disk = disk(MIB, 4 * MIB);
    let wants = [INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE, 99];
    let sent = [
        hello(BOTH),
        option(OPT_INFO, &go("x", &wants)),
        option(OPT_GO, &go("", &[])),
        request(0, CMD_READ, 5, 0, 4),
    ];
    let said = connection(&disk, &sent.concat());
    let all = replies(&said);
    let of = |n: u32, k: u32| -> Vec<&Vec<u8>> {
        all.iter().filter(|(kinds, _)| *kinds == (n, k)).map(|(_, data)| data).collect()
    };
    assert_eq!(of(OPT_INFO, REP_INFO).len(), 4);
    assert_eq!(of(OPT_GO, REP_INFO).len(), 1);
    let info = of(OPT_GO, REP_INFO)[0];
    assert_eq!(info[..10], [&[0, 0][..], &MIB.to_be_bytes()].concat());
    let flags = u16::from_be_bytes([info[10], info[11]]);
    assert_eq!(
        flags & (HAS_FLAGS | CAN_MULTI_CONN | READ_ONLY | SEND_DF),
        HAS_FLAGS | CAN_MULTI_CONN
    );
    assert!(of(OPT_INFO, REP_INFO).iter().any(|d| d[..] == *b"\0\x01x"));
    let reply = [&simple_reply(0, 5)[..], &[0; 4]].concat();
    assert!(said.ends_with(&reply), "the session begins");
}

#[test]
fn the_old_way_in() {
    let disk = disk(MIB, 4 * MIB);
    for (flags, zeroes) in [(1, 124), (BOTH, 0)] {
        let sent = [hello(flags), option(OPT_EXPORT_NAME, b"x"), request(0, CMD_FLUSH, 1, 0, 0)];
        let said = connection(&disk, &sent.concat());
        assert_eq!(said.len(), 18 + 10 + zeroes + 16);
        assert_eq!(said[18..26], MIB.to_be_bytes());
    }
    let refused = connection(&disk, &[hello(BOTH), option(OPT_EXPORT_NAME, b"y")].concat());
    assert_eq!(refused.len(), 18, "there is no other way to say no");
}

#[test]
fn what_is_wrong_is_refused_and_the_client_goes_on() {
    let structured = option(OPT_STRUCTURED_REPLY, &[]);
    let short = |data: Vec<u8>| data[..data.len() - 1].to_vec();
    let asked = [
        (option(OPT_LIST, b"x"), (OPT_LIST, REP_ERR_INVALID)),
        (option(OPT_STRUCTURED_REPLY, b"x"), (OPT_STRUCTURED_REPLY, REP_ERR_INVALID)),
        (option(5, &[]), (5, REP_ERR_UNSUP)),
        (option(77, b"whatever"), (77, REP_ERR_UNSUP)),
        (option(OPT_GO, &go("no", &[])), (OPT_GO, REP_ERR_UNKNOWN)),
        (option(OPT_GO, &short(go("x", &[1]))), (OPT_GO, REP_ERR_INVALID)),
        (option(OPT_GO, &u32::MAX.to_be_bytes()), (OPT_GO, REP_ERR_INVALID)),
        (option(OPT_GO, &[]), (OPT_GO, REP_ERR_INVALID)),
        (
            option(OPT_SET_META_CONTEXT, &contexts("x", &[])),
            (OPT_SET_META_CONTEXT, REP_ERR_INVALID),
        ),
    ];
    for (sent, answer) in asked {
        let abort = option(OPT_ABORT, &[]);
        assert_eq!(kinds(&[hello(BOTH), sent, abort]), [answer, (OPT_ABORT, REP_ACK)]);
    }
    for data in [contexts("no", &[]), short(contexts("x", &["base:"])), vec![0xff; 8]] {
        let answers =
            kinds(&[hello(BOTH), structured.clone(), option(OPT_LIST_META_CONTEXT, &data)]);
        assert!(answers[1].1 >= REP_ERR_UNSUP, "{answers:?}");
    }
}

#[test]
fn contexts_are_listed_and_set() {
    let structured = option(OPT_STRUCTURED_REPLY, &[]);
    let answers = |number: u32, queries: &[&str]| {
        let data = contexts("x", queries);
        kinds(&[hello(BOTH), structured.clone(), option(number, &data)])[1..].to_vec()
    };
    let (list, set) = (OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT);
    for queries in [&[][..], &["base:"], &["qemu:x", "base:allocation"]] {
        assert_eq!(answers(list, queries), [(list, REP_META_CONTEXT), (list, REP_ACK)]);
    }
    assert_eq!(answers(list, &["qemu:"]), [(list, REP_ACK)]);
    assert_eq!(answers(set, &["base:allocation"]), [(set, REP_META_CONTEXT), (set, REP_ACK)]);
    for queries in [&[][..], &["base:"], &["other:"]] {
        assert_eq!(answers(set, queries), [(set, REP_ACK)]);
    }
    // Set again, to nothing: then there is no block status.
    let disk = disk(MIB, 4 * MIB);
    for (second, error) in [(&["base:allocation"][..], 0), (&[], Error::Invalid as u32)] {
        let sent = [
            hello(BOTH),
            structured.clone(),
            option(set, &contexts("", &["base:allocation"])),
            option(set, &contexts("", second)),
            option(OPT_GO, &go("", &[])),
            request(0, CMD_BLOCK_STATUS, 9, 0, 4096),
        ];
        let said = connection(&disk, &sent.concat());
        let invalid = said.windows(2).any(|w| w == REPLY_ERROR.to_be_bytes());
        assert_eq!(invalid, error != 0);
    }
}

#[test]
fn what_breaks_the_protocol_ends_it() {
    let disk = disk(MIB, 4 * MIB);
    let long =
        [OPTION_MAGIC.to_be_bytes().to_vec(), vec![0, 0, 0, 6], u32::MAX.to_be_bytes().to_vec()];
    for sent in [
        Vec::new(),
        hello(0xffff_ffff),
        [hello(BOTH), vec![0; 16]].concat(),
        [hello(BOTH), long.concat()].concat(),
        [hello(BOTH), option(OPT_LIST, &[])[..9].to_vec()].concat(),
    ] {
        assert_eq!(connection(&disk, &sent).len(), 18, "the greeting, and no more");
    }
    let endless = [hello(BOTH), option(OPT_LIST, &[]).repeat(100_000)].concat();
    assert!(connection(&disk, &endless).len() < 100_000, "not for ever");
    // In a session: not a request.
    let sent = [hello(BOTH), option(OPT_GO, &go("", &[])), vec![1; 28]];
    connection(&disk, &sent.concat());
}

#[test]
fn a_write_that_stops_in_the_middle_changes_what_came() {
    let disk = disk(MIB, 4 * MIB);
    let mut sent =
        [hello(BOTH), option(OPT_GO, &go("", &[])), request(0, CMD_WRITE, 1, 0, 16384)].concat();
    sent.extend(vec![7; 10_000]);
    let said = connection(&disk, &sent);
    assert!(
        !said.windows(4).any(|w| w == SIMPLE_REPLY_MAGIC.to_be_bytes()),
        "it is not acknowledged"
    );
    assert_eq!(read(&disk, 0, 8192), [7; 8192]);
    assert_eq!(read(&disk, 12288, 4096), [0; 4096]);
    disk.cache().check();
}

#[test]
fn a_disk_that_is_read_only() {
    let disk = disk(MIB, 4 * MIB);
    disk.write(0, &[5; 4096]).unwrap();
    disk.set_read_only(true);
    let mut sent =
        [hello(BOTH), option(OPT_GO, &go("", &[])), request(0, CMD_WRITE, 1, 0, 4096)].concat();
    sent.extend(vec![7; 4096]);
    sent.extend(request(0, CMD_TRIM, 2, 0, 4096));
    sent.extend(request(0, CMD_WRITE_ZEROES, 3, 0, 4096));
    let said = connection(&disk, &sent);
    let info = &replies(&said)[0].1;
    assert_ne!(u16::from_be_bytes([info[10], info[11]]) & READ_ONLY, 0);
    let refusals: Vec<u8> =
        (1..4).flat_map(|n| simple_reply(Error::NotPermitted as u32, n)).collect();
    assert!(said.ends_with(&refusals));
    assert_eq!(read(&disk, 0, 4096), [5; 4096]);
}
