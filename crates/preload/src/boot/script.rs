//! The first line of a script, as the kernel reads it.

/// Bytes of a file that the kernel reads before it decides how to execute it. Behind a shorter file
/// there are zeros.
pub const HEAD_BYTES: usize = 256;

/// The interpreter of a script that begins so, and its argument. `None`: the kernel executes no
/// such script.
pub fn interpreter(head: &[u8; HEAD_BYTES]) -> Option<(&[u8], Option<&[u8]>)> {
    // Blanks are these two alone: a carriage return is part of a name.
    let is_blank = |b: &u8| matches!(b, b' ' | b'\t');
    let is_end = |b: &u8| is_blank(b) || *b == 0;
    let is_other = |b: &u8| !is_blank(b);
    let newline = head.iter().position(|b| *b == b'\n');
    let line = head[..newline.unwrap_or(HEAD_BYTES - 1)].strip_prefix(b"#!")?;
    let line = &line[line.iter().position(is_other)?..];
    // A line that goes on may have a cut argument, but no cut name.
    if newline.is_none() && !line.iter().any(is_end) {
        return None;
    }
    let line = &line[..=line.iter().rposition(is_other)?];
    let (name, rest) = line.split_at(line.iter().position(is_end).unwrap_or(line.len()));
    let argument = rest.iter().position(is_other).map(|at| &rest[at..]);
    let argument = argument.and_then(|argument| argument.split(|b| *b == 0).next());
    (!name.is_empty()).then_some((name, argument.filter(|argument| !argument.is_empty())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &[u8]) -> [u8; HEAD_BYTES] {
        core::array::from_fn(|i| text.get(i).copied().unwrap_or(0))
    }

    #[test]
    fn a_script_names_its_interpreter_and_one_argument() {
        let expect = |text: &[u8], name: &[u8], argument: Option<&[u8]>| {
            assert_eq!(interpreter(&head(text)), Some((name, argument)));
        };
        expect(b"#!/bin/sh\n", b"/bin/sh", None);
        expect(b"#! \t/bin/sh \t\necho\n", b"/bin/sh", None);
        expect(b"#!/bin/busybox sh\t-e \n", b"/bin/busybox", Some(b"sh\t-e"));
        // A line of another system: its end is part of the name, or of the argument.
        expect(b"#!/bin/sh\r\n", b"/bin/sh\r", None);
        expect(b"#!/bin/busybox sh\r\n", b"/bin/busybox", Some(b"sh\r"));
        // A zero ends both, and a file that is all in its first line does.
        expect(b"#!/bin/sh\0 -e\n", b"/bin/sh", None);
        expect(b"#!/bin/sh -e\0f\n", b"/bin/sh", Some(b"-e"));
        expect(b"#!/bin/sh", b"/bin/sh", None);
        for none in [&b"#!"[..], b"#!\n/bin/sh\n", b"#! \t \n", b"\x7fELF", b""] {
            assert_eq!(interpreter(&head(none)), None);
        }
    }

    #[test]
    fn a_name_that_is_cut_is_none_and_an_argument_may_be_cut() {
        let long = [b'a'; 2 * HEAD_BYTES];
        let name = [&b"#!/"[..], &long].concat();
        assert_eq!(interpreter(&head(&name)), None);
        let argument = [&b"#!/bin/sh "[..], &long].concat();
        let (name, cut) = (&b"/bin/sh"[..], &long[..HEAD_BYTES - 11]);
        assert_eq!(interpreter(&head(&argument)), Some((name, Some(cut))));
        // A newline that comes as the last byte is seen.
        let mut whole = head(&[&b"#!/"[..], &long].concat());
        whole[HEAD_BYTES - 1] = b'\n';
        assert_eq!(interpreter(&whole).unwrap().0.len(), HEAD_BYTES - 3);
    }
}
