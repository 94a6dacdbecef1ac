//! `uzswap bench codecs`: time and density of every compressor on pages of real heaps.
//!
//! Same-filled pages are left out, as the cache leaves them out. A page that a codec does not bring
//! below 15/16 counts with 4096 bytes: that is what it would take. Times are processor time of one
//! thread, over the whole mix. `none` is a copy and is not measured.

use std::hint::black_box;

use serde_json::{Map, Value, json};
use uzswap::codec::{CodecSpec, Codecs, Scratch, same_filled};

use super::engine::{Comparison, EngineArguments, arm, ns_each};
use super::plot;
use uzswap_cli::Failure;
use uzswap_cli::pages::{PAGE_BYTES, PageBytes};

const CODECS: [&str; 14] = [
    "words",
    "lz4",
    "lz4hc:level=2",
    "lz4hc:level=9",
    "lzo",
    "lzo-rle",
    "842",
    "zstd:level=-5",
    "zstd:level=1",
    "zstd:level=1,dict=auto",
    "zstd:level=3",
    "deflate:level=1",
    "deflate:level=6",
    "deflate:level=12",
];

/// The longest compressed form that is worth its place, as the cache has it.
pub const MAX_COMPRESSED_BYTES: usize = PAGE_BYTES - PAGE_BYTES / 16;

/// A codec, its working memory, and compressed pages.
struct Subject {
    codecs: Codecs,
    scratch: Scratch,
    forms: Forms,
}

/// Compressed pages one after the other.
pub struct Forms {
    bytes: Vec<u8>,
    /// Codec id, start, length; nothing where the page did not shrink.
    list: Vec<Option<(u8, usize, usize)>>,
}

impl Forms {
    pub fn of(codecs: &Codecs, scratch: &mut Scratch, pages: &[PageBytes]) -> Forms {
        let (mut bytes, mut out) = (Vec::new(), [0; MAX_COMPRESSED_BYTES]);
        let mut compress = |page: &PageBytes| {
            let done = codecs.compress(scratch, page, &mut out).ok()?;
            bytes.extend_from_slice(&out[..done.len]);
            Some((done.codec, bytes.len() - done.len, done.len))
        };
        let list = pages.iter().map(&mut compress).collect();
        Forms { bytes, list }
    }

    pub fn each(&self) -> impl Iterator<Item = (u8, &[u8])> {
        self.list.iter().flatten().map(|&(codec, at, len)| (codec, &self.bytes[at..at + len]))
    }

    /// Bytes that all pages take, in parts of what they were.
    fn share(&self) -> f64 {
        let taken: usize =
            self.list.iter().map(|form| form.map_or(PAGE_BYTES, |(_, _, len)| len)).sum();
        taken as f64 / (self.list.len() * PAGE_BYTES) as f64
    }

    fn poor(&self) -> f64 {
        self.list.iter().filter(|form| form.is_none()).count() as f64 / self.list.len() as f64
    }
}

impl Subject {
    fn new(text: &str, pages: &[PageBytes]) -> Subject {
        let spec: CodecSpec = text.parse().expect("a codec of ours");
        let (codecs, mut scratch) = (Codecs::new(spec), Scratch::new());
        // With a dictionary: until it has seen enough to train one.
        let mut out = [0; PAGE_BYTES];
        for page in pages.iter().cycle().take(if spec.wants_dictionary() { 1 << 16 } else { 0 }) {
            let _ = codecs.compress(&mut scratch, page, &mut out);
            if codecs.training_due() {
                codecs.train();
                break;
            }
        }
        let forms = Forms::of(&codecs, &mut scratch, pages);
        Subject { codecs, scratch, forms }
    }

    fn compress(&mut self, pages: &[PageBytes]) -> f64 {
        let mut out = [0; MAX_COMPRESSED_BYTES];
        ns_each(pages.len(), || {
            for page in pages {
                let _ = black_box(self.codecs.compress(&mut self.scratch, page, &mut out));
            }
        })
    }

    fn decompress(&mut self) -> f64 {
        let mut page = [0; PAGE_BYTES];
        ns_each(self.forms.each().count().max(1), || {
            for (codec, form) in self.forms.each() {
                let done = self.codecs.decompress(codec, &mut self.scratch, form, &mut page);
                black_box(done).expect("what was compressed decompresses");
            }
        })
    }
}

pub fn run(arguments: EngineArguments) -> Result<u8, Failure> {
    let comparison = Comparison::begin(&arguments, "codecs")?;
    let pages: Vec<PageBytes> =
        comparison.mix.iter().filter(|page| same_filled(page).is_none()).copied().collect();
    let subjects: Vec<_> =
        CODECS.iter().map(|text| std::cell::RefCell::new(Subject::new(text, &pages))).collect();
    let mut arms = Vec::new();
    for (text, subject) in CODECS.iter().zip(&subjects) {
        let pages = &pages;
        arms.push(arm(&format!("{text} compress"), move |_| subject.borrow_mut().compress(pages)));
        arms.push(arm(&format!("{text} decompress"), move |_| subject.borrow_mut().decompress()));
    }
    let times = comparison.in_turn(comparison.rounds, &mut arms)?;
    drop(arms);

    let names: Vec<&str> = comparison.corpora.each().map(|(name, _)| name).collect();
    print!("{:<24} {:>9} {:>9} {:>8} {:>7}", "codec", "compress", "decompr.", "size", "poor");
    names.iter().for_each(|name| print!(" {name:>9}"));
    println!("\n{:<24} {:>9} {:>9} {:>8} {:>7}", "", "us/page", "us/page", "%", "%");
    let mut results = Map::new();
    for (text, subject) in CODECS.iter().zip(&subjects) {
        let mut subject = subject.borrow_mut();
        let us =
            ["compress", "decompress"].map(|way| times.median(&format!("{text} {way}")) / 1000.0);
        let (share, poor) = (subject.forms.share(), subject.forms.poor());
        print!(
            "{text:<24} {:>9.2} {:>9.2} {:>8.1} {:>7.1}",
            us[0],
            us[1],
            100.0 * share,
            100.0 * poor
        );
        let mut shares = Map::new();
        for (name, all) in comparison.corpora.each() {
            let other: Vec<PageBytes> =
                all.iter().filter(|page| same_filled(page).is_none()).step_by(4).copied().collect();
            let Subject { codecs, scratch, .. } = &mut *subject;
            let share = Forms::of(codecs, scratch, &other).share();
            print!(" {:>9.1}", 100.0 * share);
            shares.insert(name.to_string(), share.into());
        }
        println!();
        let memory = subject.scratch.mapped_bytes() + subject.codecs.dictionary_bytes();
        results.insert(
            text.to_string(),
            json!({
                "compress_us": us[0], "decompress_us": us[1], "size": share, "poor": poor,
                "size_of_each": shares, "memory_bytes": memory,
            }),
        );
    }
    let group = |heading: &str, key: &str, scale: f64| {
        let bar =
            |text: &&str| (text.to_string(), results[*text][key].as_f64().unwrap_or(0.0) * scale);
        (heading.to_string(), CODECS.iter().map(bar).collect())
    };
    let plot = plot::bars(
        "Compressors on pages of real heaps",
        "times in microseconds per page, size in percent of the page",
        &[
            group("Compress", "compress_us", 1.0),
            group("Decompress", "decompress_us", 1.0),
            group("Size", "size", 100.0),
        ],
    );
    comparison.end(json!({"codecs": Value::Object(results), "times_ns": times.to_json()}), &plot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_codec_is_measured_and_makes_pages_smaller() {
        let mut page = [7; PAGE_BYTES];
        page[..64].copy_from_slice(&core::array::from_fn::<u8, 64, _>(|i| i as u8));
        for text in CODECS {
            let mut subject = Subject::new(text, &[page; 20]);
            assert!(subject.forms.share() < 0.2, "{text}");
            assert_eq!(subject.forms.poor(), 0.0);
            assert!(subject.compress(&[page; 20]) > 0.0 && subject.decompress() > 0.0);
        }
        let is_measured = |name| CODECS.iter().any(|text| text.split(':').next() == Some(name));
        assert!(uzswap::codec::list().all(|info| info.name == "none" || is_measured(info.name)));
    }
}
