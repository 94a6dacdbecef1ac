//! A large Rust source: many generic instantiations, for the compiler to work on.
#![allow(dead_code)]
use std::collections::{BTreeMap, HashMap};

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
struct Tag<const N: usize>(Vec<u32>, String);

fn work<const N: usize>(text: &str) -> usize {
    let mut map: BTreeMap<Tag<N>, Vec<(usize, String)>> = BTreeMap::new();
    let mut table: HashMap<Tag<N>, Result<String, Tag<N>>> = HashMap::new();
    for (i, word) in text.split_whitespace().enumerate() {
        let tag = Tag(vec![i as u32; N % 5], word.to_owned());
        map.entry(tag.clone()).or_default().push((i, word.repeat(N % 3)));
        table.insert(tag.clone(), if i % 2 == 0 { Ok(word.into()) } else { Err(tag) });
    }
    let mut list: Vec<_> =
        map.into_iter().flat_map(|(t, v)| v.into_iter().map(move |x| (x, t.clone()))).collect();
    list.sort_by(|a, b| b.0.1.cmp(&a.0.1).then(a.1.cmp(&b.1)));
    list.len() + table.values().filter(|r| r.is_ok()).count() + format!("{list:?}").len()
}

macro_rules! all {
    ($text:expr; $($a:literal)*) => { all!(@ $text; $($a)*) };
    (@ $text:expr; $($a:literal)*) => { 0 $(
        + work::<{ $a * 8 }>($text) + work::<{ $a * 8 + 1 }>($text)
        + work::<{ $a * 8 + 2 }>($text) + work::<{ $a * 8 + 3 }>($text)
        + work::<{ $a * 8 + 4 }>($text) + work::<{ $a * 8 + 5 }>($text) )* };
}

pub fn run(text: &str) -> usize {
    all!(text; 1 2 3 4 5 6 7 8 9 10 11 12)
}
