//! The loops for a processor without vectors: one word after the other. The vector loops make the
//! bytes that these make; the tests hold all of them against a naive coder.
#![forbid(unsafe_code)]

use super::form::*;

fn line_words(line: &[u8; LINE_BYTES]) -> [u64; LINE_WORDS] {
    let (words, _) = line.as_chunks::<8>();
    core::array::from_fn(|i| u64::from_le_bytes(words[i]))
}

fn bytes_that_differ(a: u64, b: u64) -> usize {
    8 - (a ^ b).leading_zeros() as usize / 8
}

fn place(word: u64, shift: u32) -> usize {
    let upper = word >> shift;
    let folded = (upper ^ upper >> 32) & 0xffff_ffff;
    ((folded * MULTIPLIER) >> PRODUCT_SHIFT) as usize % TABLE_WORDS
}

/// Where words were last, by their upper bytes.
struct Seen<'a> {
    tables: [&'a mut [[u8; 4]]; SHIFTS.len()],
}

impl Seen<'_> {
    #[inline(always)]
    fn note(&mut self, table: usize, place: usize, index: usize) {
        self.tables[table][place] = (index as u32).to_le_bytes();
    }

    /// The word at a place, compared with a word of the line at `start`: how many bytes differ, and
    /// its distance.
    #[inline(always)]
    fn look(
        &self,
        table: usize,
        place: u16,
        all: &[[u8; 8]],
        start: usize,
        word: u64,
    ) -> (usize, usize) {
        let index = u32::from_le_bytes(self.tables[table][usize::from(place)]) as usize;
        let distance = start - 1 - index;
        let differ = bytes_that_differ(word, u64::from_le_bytes(all[index]));
        (if distance > DISTANCE_MAX { 8 } else { differ }, distance)
    }
}

/// The cheapest choice for word `i` of the line at `start`, and the distance if it has one.
#[inline(always)]
fn choose(
    seen: &Seen,
    places: &[[u16; LINE_WORDS]; SHIFTS.len()],
    all: &[[u8; 8]],
    start: usize,
    i: usize,
    word: u64,
) -> (u8, usize) {
    // The tables of choices have places for all of four bits.
    let by = |choices: &Choices, differ: usize| choices[differ & 15];
    let is_first = start == 0;
    let above = if is_first { 0 } else { u64::from_le_bytes(all[start - LINE_WORDS + i]) };
    let plain =
        by(&BY_ZERO, bytes_that_differ(word, 0)).min(by(&BY_ABOVE, bytes_that_differ(word, above)));
    if is_first {
        return (plain, 0);
    }
    let one = seen.look(0, places[0][i], all, start, word);
    let other = seen.look(1, places[1][i], all, start, word);
    let (differ, distance) = if other.0 < one.0 { other } else { one };
    (plain.min(by(&BY_DISTANT, differ)), distance)
}

/// Writes the first `count` bytes of `low` to the start of `literals`, all of a line where there is
/// room.
#[inline(always)]
fn put_literals(literals: &mut [u8], low: &[u8; LINE_BYTES + 8], count: usize) -> bool {
    if let Some(out) = literals.first_chunk_mut::<LINE_BYTES>() {
        out.copy_from_slice(&low[..LINE_BYTES]);
    } else if let Some(out) = literals.get_mut(..count) {
        out.copy_from_slice(&low[..count]);
    } else {
        return false;
    }
    true
}

/// As the vector loops, to the byte, one word after the other.
#[inline(always)]
pub fn compress_lines(
    tables: &mut [u8; TABLES_BYTES],
    lines: &[[u8; LINE_BYTES]],
    literals: &mut [u8],
    found: &mut Lines,
) -> bool {
    tables.fill(0);
    let (entries, _) = tables.as_chunks_mut::<4>();
    let mut seen = Seen { tables: entries.split_at_mut(TABLE_WORDS).into() };
    let (all, _) = lines.as_flattened().as_chunks::<8>();
    for (number, line) in lines.iter().enumerate() {
        if found.is_hopeless(number, lines.len(), literals.len()) {
            return false;
        }
        let words = line_words(line);
        let start = number * LINE_WORDS;
        if words == [0; LINE_WORDS] {
            // No code, and its last word is where zero was last.
            for (table, shift) in SHIFTS.into_iter().enumerate() {
                seen.note(table, place(0, shift), start + LINE_WORDS - 1);
            }
            continue;
        }
        let places = SHIFTS.map(|shift| words.map(|word| place(word, shift) as u16));
        // Whole words are written, each from where the literal of the one before ends.
        let (mut low, mut count) = ([0; LINE_BYTES + 8], 0);
        let mut codes = 0u32;
        for (i, word) in words.into_iter().enumerate() {
            let (choice, distance) = choose(&seen, &places, all, start, i, word);
            let code = choice & 15;
            codes |= u32::from(code) << (4 * i);
            low[count..count + 8].copy_from_slice(&word.to_le_bytes());
            count += usize::from(LITERALS[usize::from(code)]);
            // A distance too many is overwritten by the next.
            found.distances[found.distance_bytes] = distance as u8;
            found.distance_bytes += usize::from(code >= FIRST_DISTANT);
        }
        let Some(out) = literals.get_mut(found.literal_bytes..) else { return false };
        if !put_literals(out, &low, count) {
            return false;
        }
        found.literal_bytes += count;
        for i in 0..LINE_WORDS {
            for (table, places) in places.iter().enumerate() {
                seen.note(table, usize::from(places[i]), start + i);
            }
        }
        found.put_codes(number, codes);
    }
    true
}

/// As the vector loops, one word after the other: how many distances there were.
#[inline(always)]
pub fn decompress_lines(block: &Block, lines: &mut [[u8; LINE_BYTES]]) -> Option<usize> {
    const WINDOW: usize = LINE_BYTES + 8;
    let (mut codes, _) = block.codes.as_chunks::<CODE_BYTES>();
    let (mut literals, mut distances) = (block.literals, 0);
    let (all, _) = lines.as_flattened_mut().as_chunks_mut::<8>();
    let mut above = [0; LINE_WORDS];
    for start in (0..all.len()).step_by(LINE_WORDS) {
        if block.with_code >> (start / LINE_WORDS) & 1 == 0 {
            all[start..start + LINE_WORDS].fill([0; 8]);
            above = [0; LINE_WORDS];
            continue;
        }
        let (line_codes, more) = codes.split_first()?;
        let line_codes = u32::from_le_bytes(*line_codes);
        codes = more;
        // Whole words are read, so the last lines of a block need something behind them.
        let mut tail = [0; WINDOW];
        let low = first(literals, &mut tail);
        let mut count = 0;
        for (i, above) in above.iter_mut().enumerate() {
            let code = (line_codes >> (4 * i)) as usize & 15;
            let mask = MASKS[code];
            let mut base = if code < usize::from(FIRST_ABOVE) { 0 } else { *above };
            if code >= usize::from(FIRST_DISTANT) {
                let distance = usize::from(*block.distances.get(distances)?);
                distances += 1;
                base = u64::from_le_bytes(all[start.checked_sub(1 + distance)?]);
            }
            let literal = u64::from_le_bytes(low[count..count + 8].try_into().expect("8 bytes"));
            count += usize::from(LITERALS[code]);
            *above = base & !mask | literal & mask;
            all[start + i] = above.to_le_bytes();
        }
        literals = literals.get(count..)?;
    }
    literals.is_empty().then_some(distances)
}

#[cfg(test)]
mod tests {
    use super::super::{Level, Loops, loops};
    use super::*;
    use crate::testing::{Choices as _, Random};

    /// The coder as the form's description has it.
    fn naive_compress(
        tables: &mut [u8; TABLES_BYTES],
        lines: &[[u8; LINE_BYTES]],
        literals: &mut [u8],
        found: &mut Lines,
    ) -> bool {
        tables.fill(0);
        let (entries, _) = tables.as_chunks_mut::<4>();
        let (first, second) = entries.split_at_mut(TABLE_WORDS);
        let at = |index: usize| line_words(&lines[index / LINE_WORDS])[index % LINE_WORDS];
        let mut above = [0; LINE_WORDS];
        for (number, line) in lines.iter().enumerate() {
            if found.is_hopeless(number, lines.len(), literals.len()) {
                return false;
            }
            let words = line_words(line);
            let start = number * LINE_WORDS;
            let mut codes = 0u32;
            for (i, word) in words.into_iter().enumerate() {
                let mut best = BY_ZERO[bytes_that_differ(word, 0)]
                    .min(BY_ABOVE[bytes_that_differ(word, above[i])]);
                let mut distance = 0;
                if number > 0 {
                    let near = |table: &[[u8; 4]], shift| {
                        let index = u32::from_le_bytes(table[place(word, shift)]) as usize;
                        let distance = start - 1 - index;
                        let differ = if distance > DISTANCE_MAX {
                            8
                        } else {
                            bytes_that_differ(word, at(index))
                        };
                        (differ, distance)
                    };
                    let (one, other) = (near(first, SHIFTS[0]), near(second, SHIFTS[1]));
                    let (differ, nearer) = if other.0 < one.0 { other } else { one };
                    distance = nearer;
                    best = best.min(BY_DISTANT[differ]);
                }
                let code = best & 15;
                codes |= u32::from(code) << (4 * i);
                let count = LITERALS[usize::from(code)].into();
                let end = found.literal_bytes + count;
                let Some(out) = literals.get_mut(found.literal_bytes..end) else { return false };
                out.copy_from_slice(&word.to_le_bytes()[..count]);
                found.literal_bytes = end;
                if code >= FIRST_DISTANT {
                    found.distances[found.distance_bytes] = distance as u8;
                    found.distance_bytes += 1;
                }
            }
            for (i, word) in words.into_iter().enumerate() {
                first[place(word, SHIFTS[0])] = ((start + i) as u32).to_le_bytes();
                second[place(word, SHIFTS[1])] = ((start + i) as u32).to_le_bytes();
            }
            if codes != 0 {
                found.with_code |= 1 << number;
                found.codes[found.code_bytes..][..CODE_BYTES].copy_from_slice(&codes.to_le_bytes());
                found.code_bytes += CODE_BYTES;
            }
            above = words;
        }
        true
    }

    fn naive_decompress(block: &Block, lines: &mut [[u8; LINE_BYTES]]) -> Option<usize> {
        let (mut codes, _) = block.codes.as_chunks::<CODE_BYTES>();
        let (mut literals, mut distances) = (block.literals, 0);
        let mut above = [0; LINE_WORDS];
        for number in 0..lines.len() {
            let mut word_codes = 0;
            if block.with_code >> number & 1 != 0 {
                let (first, more) = codes.split_first()?;
                (word_codes, codes) = (u32::from_le_bytes(*first), more);
            }
            let mut words = [0u64; LINE_WORDS];
            for (i, word) in words.iter_mut().enumerate() {
                let code = (word_codes >> (4 * i)) as u8 & 15;
                let base = if code < FIRST_ABOVE {
                    0
                } else if code < FIRST_DISTANT {
                    above[i]
                } else {
                    let distance = usize::from(*block.distances.get(distances)?);
                    distances += 1;
                    let index = (number * LINE_WORDS).checked_sub(1 + distance)?;
                    line_words(&lines[index / LINE_WORDS])[index % LINE_WORDS]
                };
                let (low, more) = literals.split_at_checked(LITERALS[usize::from(code)].into())?;
                let mut bytes = base.to_le_bytes();
                bytes[..low.len()].copy_from_slice(low);
                (*word, literals) = (u64::from_le_bytes(bytes), more);
            }
            let (out, _) = lines[number].as_chunks_mut::<8>();
            out.iter_mut().zip(words).for_each(|(out, word)| *out = word.to_le_bytes());
            above = words;
        }
        literals.is_empty().then_some(distances)
    }

    /// Lines of pointers, numbers, noise, zeros and words from before.
    fn heap(random: &mut Random, lines: usize) -> Vec<[u8; LINE_BYTES]> {
        let mut words = Vec::new();
        while words.len() < lines * LINE_WORDS {
            let word = match random.index(9) {
                0 | 1 => 0,
                2 => random.next() >> random.index(64),
                3 => 0x7f3a_5c00_0000 + random.next() % (1 << (8 * (1 + random.index(4)))),
                4 => u64::MAX,
                5 if words.len() >= 8 => words[words.len() - 8],
                6 if words.len() >= 8 => {
                    words[words.len() - 8] ^ random.next() >> (8 * random.index(8))
                }
                7 if !words.is_empty() => words[random.index(words.len())],
                8 if !words.is_empty() => words[random.index(words.len())] ^ random.next() & 0xffff,
                _ => random.next(),
            };
            words.push(word);
        }
        words
            .chunks_exact(LINE_WORDS)
            .map(|line| core::array::from_fn(|i| line[i / 8].to_le_bytes()[i % 8]))
            .collect()
    }

    /// Compares the loops with the naive coder.
    fn compare(loops: Loops, seed: u64) {
        let mut random = Random::new(seed);
        let mut tables = [[0xa5; TABLES_BYTES], [0x5a; TABLES_BYTES]];
        for round in 0..3000 {
            let lines = heap(&mut random, round % (BLOCK_LINES + 1));
            let room =
                if round % 3 == 0 { random.index(lines.len() * LINE_BYTES + 1) } else { 5000 };
            let mut outs = [vec![0; room], vec![0; room]];
            let mut found = [Lines::new(), Lines::new()];
            let ([naive_tables, tables], [naive_out, out]) = (&mut tables, &mut outs);
            let [naive_found, new_found] = &mut found;
            let fits = [
                naive_compress(naive_tables, &lines, naive_out, naive_found),
                loops.compress(tables, &lines, out, new_found),
            ];
            assert_eq!(fits[0], fits[1], "round {round}");
            if !fits[0] {
                continue;
            }
            let parts = |i: usize| {
                let f = &found[i];
                (
                    f.with_code,
                    outs[i][..f.literal_bytes].to_vec(),
                    f.codes[..f.code_bytes].to_vec(),
                    f.distances[..f.distance_bytes].to_vec(),
                )
            };
            assert_eq!(parts(0), parts(1), "round {round}");
            let (with_code, literals, codes, mut distances) = parts(0);
            let count = distances.len();
            distances.resize(count + random.index(9), 7);
            // Both decoders, and both with something wrong.
            for damage in 0..4 {
                let (mut literals, mut codes, mut distances) =
                    (literals.clone(), codes.clone(), distances.clone());
                let bytes = match damage {
                    1 => &mut literals,
                    2 => &mut codes,
                    _ => &mut distances,
                };
                if damage > 0 && !bytes.is_empty() {
                    let at = random.index(bytes.len());
                    match random.index(3) {
                        0 => bytes.truncate(at),
                        _ => bytes[at] ^= 1 << random.index(8),
                    }
                }
                let block =
                    Block { with_code, literals: &literals, codes: &codes, distances: &distances };
                let mut back =
                    [vec![[1; LINE_BYTES]; lines.len()], vec![[2; LINE_BYTES]; lines.len()]];
                let ends = [
                    naive_decompress(&block, &mut back[0]),
                    loops.decompress(&block, &mut back[1]),
                ];
                assert_eq!(ends[0], ends[1], "round {round}, damage {damage}");
                if ends[0].is_some() {
                    assert!(back[0] == back[1], "round {round}, damage {damage}");
                }
                if damage == 0 {
                    assert_eq!(ends[0], Some(count));
                    assert!(back[0] == lines, "round {round}");
                }
            }
        }
    }

    #[test]
    fn with_what_the_processor_has_the_bytes_are_those_that_are_said() {
        for (level, seed) in [(Level::Plain, 11), (Level::Avx2, 12), (Level::Avx512, 11)] {
            match loops().at(level) {
                Some(loops) => compare(loops, seed),
                None => println!("SKIPPED: this processor has no {level:?}"),
            }
        }
    }
}
