//! How much stack each codec takes. They run on alternate signal stacks of tens of KiB, which the
//! fault handler's own frames and a vector state of several KiB share.

mod stack;

use stack::{on_a_fresh_stack, stack_bytes_of};
use uzswap::codec::{CodecSpec, Codecs, Scratch, Training, fill, same_filled};

/// Pages of several kinds, and a unit of 64 KiB and one of 2 MiB made of them.
fn inputs() -> Vec<Vec<u8>> {
    let mut x = 88172645463325252u64;
    let mut random = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let words = (0..512)
        .flat_map(|_| [0x5555_0000 + random() % 4096 * 16, random() % 7])
        .collect::<Vec<_>>();
    let text = (0..4096).map(|_| b"etaoin shrdlu"[random() as usize % 13]).collect();
    let noise = (0..4096).map(|_| random() as u8).collect();
    let pointers = words.iter().flat_map(|w| w.to_le_bytes()).take(4096).collect();
    let pages: [Vec<u8>; 4] = [text, noise, pointers, vec![0; 4096]];
    let unit = |pages_of_it: usize| (0..pages_of_it).flat_map(|i| pages[i % 3].clone()).collect();
    let units = [unit(16), unit(512)];
    pages.into_iter().chain(units).collect()
}

#[test]
fn codecs_stay_within_their_stack() {
    const KIB: usize = 1024;
    let cases = [
        ("none", KIB),
        ("words", 2 * KIB),
        ("lz4", KIB),
        ("lz4hc:2", 2 * KIB),
        ("lz4hc:9", 2 * KIB),
        ("lzo", KIB),
        ("lzo-rle", KIB),
        ("842", KIB),
        ("zstd:-5", 4 * KIB),
        ("zstd:1", 4 * KIB),
        ("zstd:3", 4 * KIB),
        ("zstd:9", 4 * KIB),
        ("zstd:22", 4 * KIB),
        ("deflate:1", 4 * KIB),
        ("deflate:6", 4 * KIB),
        ("deflate:12", 4 * KIB),
    ];
    for (text, allowed) in cases {
        let codecs = Codecs::new(CodecSpec::parse(text).unwrap());
        on_a_fresh_stack(|| {
            let mut scratch = Scratch::new();
            let (mut down, mut up) = (0, 0);
            for src in inputs() {
                let (mut dst, mut back) = (vec![0; src.len() * 2], vec![0; src.len()]);
                let mut done = None;
                let depth =
                    stack_bytes_of(|| done = codecs.compress(&mut scratch, &src, &mut dst).ok());
                down = depth.max(down);
                let done = done.unwrap();
                let depth = stack_bytes_of(|| {
                    codecs
                        .decompress(done.codec, &mut scratch, &dst[..done.len], &mut back)
                        .unwrap();
                });
                up = depth.max(up);
            }
            println!("{text}: compress {down}, decompress {up} bytes of stack");
            assert!(down.max(up) <= allowed, "{text}: compress {down}, decompress {up}");
        });
    }
    on_a_fresh_stack(|| {
        let codecs = Codecs::new(CodecSpec::parse("zstd:level=1,dict=auto").unwrap());
        let (mut scratch, mut dst, src) = (Scratch::new(), vec![0; 8192], &inputs()[0]);
        for number in 0u32..4000 {
            let mut src = src.clone();
            src[..4].copy_from_slice(&number.to_le_bytes());
            codecs.compress(&mut scratch, &src, &mut dst).unwrap();
        }
        assert!(codecs.training_due());
        let depth = stack_bytes_of(|| assert!(matches!(codecs.train(), Training::Kept { .. })));
        println!("training: {depth} bytes of stack");
        assert!(depth <= 8 * KIB, "training: {depth}");
    });
    on_a_fresh_stack(|| {
        let mut page = [0; 4096];
        assert!(stack_bytes_of(|| fill(&mut page, 7)) <= 1024);
        assert!(stack_bytes_of(|| assert_eq!(same_filled(&page), Some(7))) <= 1024);
    });
}
