//! `uzswap bench pools`: how densely each pool keeps real objects, how fast, and how much it gives
//! back.
//!
//! ```text
//!  store every object ── density ── read all ── free 90 % at random ── compact ── resident memory: how much less?
//! ```
//!
//! Objects are the mix compressed by lz4. Density is object bytes to bytes of frames. Resident
//! memory is what the kernel says of this process, which does nothing else meanwhile.

use std::cell::RefCell;
use std::hint::black_box;

use serde_json::{Map, Value, json};
use uzswap::codec::{CodecSpec, Codecs, Scratch, same_filled};
use uzswap::pool::{ClassStats, MAX_OBJECT_BYTES, Pool, PoolKind};

use super::codecs::Forms;
use super::engine::{Aim, Arm, Comparison, EngineArguments, arm, ns_each};
use super::plot;
use super::record::median;
use uzswap_cli::Failure;
use uzswap_cli::pages::{PAGE_BYTES, PageBytes, Random};
use uzswap_cli::procfs::kib_of;

#[derive(clap::Args, Debug)]
pub struct PoolsArguments {
    #[command(flatten)]
    engine: EngineArguments,
    /// Print zsmalloc's classes too, in the columns of the kernel's debug file
    #[arg(long)]
    classes: bool,
}

/// One round of one pool.
#[derive(Clone, Copy, Default)]
struct Seen {
    density: f64,
    metadata: f64,
    store_ns: f64,
    read_ns: f64,
    free_ns: f64,
    compact_ns: f64,
    freed_bytes: f64,
    resident_fell_bytes: f64,
    density_after: f64,
}

/// One figure of what was seen.
type Figure = fn(&Seen) -> f64;

fn resident_bytes() -> f64 {
    // Exact, other than the sum in `status`.
    (kib_of("/proc/self/smaps_rollup", "Rss:") * 1024) as f64
}

fn density(pool: &Pool) -> f64 {
    pool.object_bytes() as f64 / (pool.used_frames() * PAGE_BYTES) as f64
}

/// One round with one pool; `classes` gets the table of its classes when it is fullest.
fn round(kind: PoolKind, objects: &[&[u8]], seed: u64, classes: &mut Vec<ClassStats>) -> Seen {
    let mut pool = Pool::new(kind);
    let mut handles = Vec::with_capacity(objects.len());
    let mut order: Vec<u32> = (0..objects.len() as u32).collect();
    Random(seed).shuffle(&mut order);
    let mut seen = Seen {
        store_ns: ns_each(objects.len(), || {
            handles.extend(
                objects.iter().map(|object| pool.store(object).expect("memory for the pool")),
            );
        }),
        ..Seen::default()
    };
    seen.density = density(&pool);
    seen.metadata = pool.metadata_bytes() as f64 / pool.object_bytes() as f64;
    classes.clear();
    pool.for_each_class(|class| classes.push(class));
    let mut scratch = [0; MAX_OBJECT_BYTES];
    seen.read_ns = ns_each(objects.len(), || {
        for &i in &order {
            let bytes = pool.read(handles[i as usize], &mut scratch);
            look_at(bytes);
        }
    });
    let (gone, kept) = order.split_at(order.len() / 10 * 9);
    let (before, bytes) = (resident_bytes(), pool.object_bytes());
    seen.free_ns =
        ns_each(gone.len(), || gone.iter().for_each(|&i| pool.free(handles[i as usize])));
    seen.compact_ns = ns_each(gone.len(), || {
        while pool.compact(64) > 0 {}
        pool.release();
    });
    seen.resident_fell_bytes = before - resident_bytes();
    seen.freed_bytes = (bytes - pool.object_bytes()) as f64;
    seen.density_after = density(&pool);
    let right =
        kept.iter().all(|&i| pool.read(handles[i as usize], &mut scratch) == objects[i as usize]);
    assert!(right, "an object is not what was stored");
    seen
}

/// Looks at one word of each cache line, as a decompressor at least does.
fn look_at(bytes: &[u8]) {
    black_box(bytes.iter().step_by(64).fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
}

/// The table's lines: a figure of each pool.
const COLUMNS: [(&str, Figure); 9] = [
    ("density", |seen| seen.density),
    ("metadata to objects", |seen| seen.metadata),
    ("store ns", |seen| seen.store_ns),
    ("read ns", |seen| seen.read_ns),
    ("free ns", |seen| seen.free_ns),
    ("compact ns per freed object", |seen| seen.compact_ns),
    ("freed bytes", |seen| seen.freed_bytes),
    ("resident memory fell by", |seen| seen.resident_fell_bytes),
    ("density after", |seen| seen.density_after),
];

pub fn run(arguments: PoolsArguments) -> Result<u8, Failure> {
    let mut comparison = Comparison::begin(&arguments.engine, "pools")?;
    let codecs = Codecs::new(CodecSpec::default());
    let pages: Vec<PageBytes> =
        comparison.mix.iter().filter(|page| same_filled(page).is_none()).copied().collect();
    let forms = Forms::of(&codecs, &mut Scratch::new(), &pages);
    let objects: Vec<&[u8]> = forms.each().map(|(_, form)| form).collect();

    let seen = PoolKind::ALL.map(|_| RefCell::new((Vec::new(), Vec::new())));
    let of_kind = |(kind, seen)| arm_of(kind, &objects, seen);
    let mut arms: Vec<_> = PoolKind::ALL.into_iter().zip(&seen).map(of_kind).collect();
    let times = comparison.in_turn(comparison.rounds, &mut arms)?;
    drop(arms);

    let figure =
        |kind: usize, of: Figure| median(seen[kind].borrow().0.iter().map(of)).unwrap_or(f64::NAN);
    let medians = table(&objects, &figure);
    if arguments.classes {
        println!("\n{}", ClassStats::HEADER);
        seen[0].borrow().1.iter().for_each(|class| println!("{class}"));
    }
    comparison.aim(
        "zsmalloc: density of the mix",
        figure(0, |seen| seen.density),
        Aim::AtLeast(0.97),
    );
    let returned = figure(0, |seen| seen.resident_fell_bytes / seen.freed_bytes);
    comparison.aim("zsmalloc: fall of resident memory to bytes freed", returned, Aim::AtLeast(0.8));
    let plot = picture(&figure);
    comparison.end(
        json!({"objects": objects.len(), "medians": medians, "store_ns": times.to_json()}),
        &plot,
    )
}

/// The arm of one pool, which notes in `seen` what it saw in all rounds, and the pool's classes.
fn arm_of<'a>(
    kind: PoolKind,
    objects: &'a [&'a [u8]],
    seen: &'a RefCell<(Vec<Seen>, Vec<ClassStats>)>,
) -> Arm<'a> {
    arm(kind.name(), move |number| {
        let (all, classes) = &mut *seen.borrow_mut();
        let of_round = round(kind, objects, number as u64, classes);
        all.push(of_round);
        of_round.store_ns
    })
}

/// Prints the medians of both pools, by a figure as for [`picture`], and returns them.
fn table(objects: &[&[u8]], figure: &dyn Fn(usize, Figure) -> f64) -> Map<String, Value> {
    let bytes: usize = objects.iter().map(|object| object.len()).sum();
    println!(
        "{} objects, {bytes} bytes, {:.0} each",
        objects.len(),
        bytes as f64 / objects.len() as f64
    );
    println!("{:<28} {:>12} {:>12}", "", PoolKind::ALL[0].name(), PoolKind::ALL[1].name());
    let mut medians = Map::new();
    for (what, of) in COLUMNS {
        let both = [figure(0, of), figure(1, of)];
        println!(
            "{what:<28} {:>12.*} {:>12.*}",
            digits(both[0]),
            both[0],
            digits(both[1]),
            both[1]
        );
        medians.insert(what.to_string(), json!({"zsmalloc": both[0], "zbud": both[1]}));
    }
    medians
}

/// Both pools beside each other, in percent. `figure`: the median of a pool, by its place in
/// `PoolKind::ALL`.
fn picture(figure: &dyn Fn(usize, Figure) -> f64) -> String {
    let group = |heading: &str, of: Figure| {
        let bar = |(i, kind): (usize, PoolKind)| (kind.name().to_string(), figure(i, of) * 100.0);
        (heading.to_string(), PoolKind::ALL.into_iter().enumerate().map(bar).collect())
    };
    let groups = [
        group("Density", |seen| seen.density),
        group("Fall of resident memory to bytes freed", |s| s.resident_fell_bytes / s.freed_bytes),
    ];
    plot::bars("Pools with real objects", "percent", &groups)
}

fn digits(value: f64) -> usize {
    if value < 10.0 { 4 } else { 0 }
}
