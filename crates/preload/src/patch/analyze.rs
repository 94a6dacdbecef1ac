//! Where the `syscall` instructions of an object are, and how each can be replaced.
//!
//! A jump takes 5 bytes and the instruction has 2, so a neighbour has to move. Three ways, best
//! first:
//!
//! ```text
//!  before   mov eax, 1          jmp trampoline      it runs the mov, looks at the route, and comes back to the
//!           syscall      ==>    syscall             instruction itself: it stays where it was, so that a signal
//!           cmp rax, ..         cmp rax, ..         handler, a debugger and an unwinder see the address they know
//!
//!  over     syscall      ==>    jmp trampoline      it holds the instruction and the moved neighbours
//!           cmp rax, ..         (int3s)
//!
//!  detour   syscall      ==>    jmp short pad       where nothing may move: the 5-byte jump lies in the padding
//!           pad: nop..          pad: jmp trampoline between two functions nearby
//! ```
//!
//! An instruction may move under three conditions. It runs the same at another address (one that
//! names memory relative to itself is corrected, and is the last resort). It does not change the
//! stack pointer, as unwinding through the trampoline relies on it. It does not transfer control,
//! except that the last one may be a branch or a return. No overwritten byte but the first may be
//! reached by a jump. To know that, the function is decoded, and its branches, jump tables and
//! landing pads are collected. Hand-written code also branches from one function into another.
//! Short branches of this kind are found by decoding the neighbours, long ones by a scan of the
//! whole text for any bytes that could be one.
//!
//! Only functions that contain the bytes 0f 05 are decoded: libc has some 530 instructions in 3000
//! functions.
//!
//! ```text
//!   candidates ──> body ──┬──> plan ──> sites, planned again while a far branch leads into one
//!              └─> sweep ─┘     └ pads      (sweep: code that no table of functions knows)
//! ```
#![forbid(unsafe_code)]

mod body;
mod candidates;
mod instruction;
mod pads;
mod plan;
mod sweep;

use std::vec::Vec;

use super::elf::{Function, Functions, Image};
use super::table::{Analysis, Site};
use body::Body;
use candidates::{find_candidates, looks_like_a_call};
use pads::Pads;

/// The longest code between two functions that is taken for a part of the first.
const MAX_GAP_BYTES: u64 = 512;

/// Finds every system-call instruction of `image` and decides how to replace it.
pub fn analyze(image: &Image) -> Analysis {
    let candidates: Vec<u64> = image.texts().flat_map(|(v, b)| find_candidates(v, b)).collect();
    let mut analysis = Analysis::default();
    if image.has_text_relocations() {
        analysis.unpatchable = candidates;
        analysis.unpatchable.retain(|&c| looks_like_a_call(image, c));
        return analysis;
    }
    let functions = image.functions();
    let mut work = Vec::new();
    // Candidates in code that no unwinder knows, or in data.
    let mut unknown = Vec::new();
    let mut i = 0;
    while i < candidates.len() {
        let found = functions.as_ref().and_then(|functions| {
            let n = functions.at_or_below(candidates[i])?;
            Some((functions, n, containing(functions, n, functions.get(n)?, candidates[i])?))
        });
        let Some((functions, index, function)) = found else {
            unknown.push(candidates[i]);
            i += 1;
            continue;
        };
        let count = candidates[i..].iter().take_while(|&&c| c < function.end).count();
        let mine = &candidates[i..i + count];
        match Body::decode(image, functions, index, function, mine) {
            Some(body) if body.calls.is_empty() => {}
            Some(body) => work.push(body),
            None => {
                analysis.unpatchable.extend(mine.iter().filter(|&&c| looks_like_a_call(image, c)))
            }
        }
        i += count;
    }
    let swept = sweep::sweep(image, functions.as_ref(), &unknown);
    work.extend(swept.bodies);
    analysis.unpatchable.extend(swept.unplaced);
    plan_all(image, functions.as_ref(), &mut work, &mut analysis);
    analysis
}

/// The function, which may have to reach up to the next one to contain `candidate`: `clone` ends
/// its entry just before the instruction, because in the child the caller's frame does not exist.
fn containing(
    functions: &Functions,
    index: usize,
    function: Function,
    candidate: u64,
) -> Option<Function> {
    if candidate < function.end {
        return Some(function);
    }
    let next = functions.get(index + 1)?.start;
    let fits = candidate < next && next - function.end <= MAX_GAP_BYTES;
    fits.then_some(Function { end: next, ..function })
}

/// Plans all functions; when a far branch turns out to lead into overwritten bytes, plans again
/// knowing it.
fn plan_all(
    image: &Image,
    functions: Option<&Functions>,
    work: &mut [Body],
    analysis: &mut Analysis,
) {
    loop {
        let mut sites = Vec::new();
        let mut failed = Vec::new();
        let mut pads = Pads::default();
        for body in work.iter() {
            body.plan(image, functions, &mut pads, &mut sites, &mut failed);
        }
        sites.sort_by_key(|s: &Site| s.start);
        let hit = far_branches_into(image, &sites);
        let mut news = false;
        for target in hit {
            for body in
                work.iter_mut().filter(|b| (b.function.start..b.function.end).contains(&target))
            {
                if let Err(at) = body.targets.binary_search(&target) {
                    body.targets.insert(at, target);
                    news = true;
                }
            }
        }
        if !news {
            analysis.sites = sites;
            analysis.unpatchable.extend(failed);
            analysis.unpatchable.sort_unstable();
            return;
        }
    }
}

/// Targets, inside overwritten bytes, of anything in the text that could be a branch with a 32-bit
/// distance.
fn far_branches_into(image: &Image, sites: &[Site]) -> Vec<u64> {
    // Inner bytes of each site; the instruction that stays in place counts.
    let inner = |s: &Site| (s.start + 1, s.start + (s.len as u64).max(s.syscall as u64 + 2));
    let (Some(first), Some(last)) = (sites.first(), sites.last()) else { return Vec::new() };
    let (low, high) = (inner(first).0, inner(last).1);
    let mut hits = Vec::new();
    for (vaddr, text) in image.texts() {
        for (at, w) in text.windows(5).enumerate() {
            // e8 call, e9 jmp, (0f) 80-8f jcc: the distance is the last four bytes in each case.
            if !(w[0] & 0xfe == 0xe8 || w[0] & 0xf0 == 0x80) {
                continue;
            }
            let distance = i32::from_le_bytes([w[1], w[2], w[3], w[4]]);
            let target = (vaddr + at as u64 + 5).wrapping_add(distance as u64);
            if target < low || target >= high {
                continue;
            }
            let i = sites.partition_point(|s| s.start < target);
            let Some(site) = i.checked_sub(1).map(|i| &sites[i]) else { continue };
            let (from, to) = inner(site);
            let is_branch = w[0] & 0xfe == 0xe8 || (at > 0 && text[at - 1] == 0x0f);
            if is_branch && (from..to).contains(&target) {
                hits.push(target);
            }
        }
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::instruction::direct_targets;
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};
    use std::collections::HashSet;
    use std::string::String;

    /// The path of an object that this process has loaded.
    pub(super) fn loaded(name: &str) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.split_whitespace().find(|w| w.contains(name)).unwrap().into()
    }

    fn objects() -> [String; 2] {
        [loaded("/libc.so"), loaded("/ld-linux")]
    }

    /// Addresses of the instruction in a disassembly by binutils, but for returns from signals.
    fn by_objdump(path: &str) -> Option<Vec<u64>> {
        let out = std::process::Command::new("objdump")
            .args(["-d", "--no-show-raw-insn", path])
            .output()
            .ok()?;
        let text = String::from_utf8(out.stdout).unwrap();
        let mut found = Vec::new();
        let mut last = "";
        for line in text.lines() {
            let Some((address, instruction)) = line.split_once(':') else { continue };
            if instruction.trim() == "syscall" && !last.contains("$0xf,%") {
                found.push(u64::from_str_radix(address.trim(), 16).unwrap());
            }
            last = instruction;
        }
        Some(found)
    }

    #[test]
    fn every_instruction_that_a_disassembler_sees_is_found_and_has_a_plan() {
        for path in objects() {
            let file = std::fs::read(&path).unwrap();
            let analysis = analyze(&Image::of_file(&file).unwrap());
            assert_eq!(analysis.unpatchable, []);
            let Some(expected) = by_objdump(&path) else { return };
            let found: Vec<u64> = analysis.sites.iter().map(|s| s.syscall_vaddr()).collect();
            assert_eq!(found, expected, "{path}");
        }
    }

    /// All code of the object is decoded, and no branch in it leads between the ends of a site.
    #[test]
    fn nothing_jumps_into_a_site() {
        for path in objects() {
            let file = std::fs::read(&path).unwrap();
            let image = Image::of_file(&file).unwrap();
            let sites = analyze(&image).sites;
            let inner: HashSet<u64> = sites
                .iter()
                .flat_map(|s| {
                    s.start + 1
                        ..s.start
                            + (s.len as u64).max(s.syscall as u64 + 1)
                            + s.stays_in_place() as u64
                })
                .collect();
            let functions = image.functions().unwrap();
            let mut branches = 0;
            for i in 0..functions.len() {
                let f = functions.get(i).unwrap();
                let end = if i + 1 < functions.len() {
                    functions.get(i + 1).unwrap().start
                } else {
                    f.end
                };
                let Some(text) = image.bytes_at(f.start, (end - f.start) as usize) else {
                    continue;
                };
                let code: Vec<_> =
                    Decoder::with_ip(64, text, f.start, DecoderOptions::NONE).into_iter().collect();
                for target in direct_targets(&code) {
                    assert!(!inner.contains(&target), "{path}: {target:x}");
                    branches += 1;
                }
            }
            assert!(branches > 1000);
            for (a, b) in sites.iter().zip(&sites[1..]) {
                assert!(a.start + (a.len as u64).max(a.syscall as u64 + 2) <= b.start);
            }
        }
    }
}
