//! Pages of a running program, drawn at random: every page has the same chance at every moment that
//! it is there.
//!
//! Nobody knows before how many pages there will be, and memory for them is bounded. So they go
//! into a *reservoir* of places. A page that is drawn takes each place with a chance: the part that
//! its memory and time have of all so far (Chao, A general purpose unequal probability sampling
//! plan, 1982; here with replacement). A place is a draw of all memory over all the time; a page
//! that stands for much of it, as one drawn when the program sat still for long, has several.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::look::Area;
use crate::pages::{PAGE_BYTES, PageBytes, Random};

/// Enough for a ratio that is right to 2 %, in 16 MiB.
const RESERVOIR_PAGES: usize = 4096;
/// Places that are tried for one page that is there: areas may be hardly used.
const TRIES: u32 = 200;
const PRESENT: u64 = 1 << 63;

pub struct Reservoir {
    random: Random,
    /// The weight of all that was drawn.
    weight: f64,
    places: Vec<Arc<PageBytes>>,
}

impl Reservoir {
    pub fn new() -> Reservoir {
        Reservoir { random: Random(1), weight: 0.0, places: Vec::new() }
    }

    /// How many places pages of this weight are going to take.
    pub fn places(&self, weight: f64) -> u32 {
        (RESERVOIR_PAGES as f64 * weight / (self.weight + weight).max(f64::MIN_POSITIVE)) as u32
    }

    /// A page that has several places is in it as often, one after the other.
    pub fn into_pages(self) -> Vec<Arc<PageBytes>> {
        let mut pages = self.places;
        pages.sort_by_key(Arc::as_ptr);
        pages
    }

    /// Draws `count` pages of the areas of a process, which stand for `weight` together: memory
    /// times time. A page that cannot be read has just gone and is left out.
    pub fn draw(&mut self, pid: u32, areas: &[Area], count: u32, weight: f64) {
        let open = |name: &str| File::open(format!("/proc/{pid}/{name}"));
        let (Ok(map), Ok(memory)) = (open("pagemap"), open("mem")) else { return };
        let total_kib: u64 = areas.iter().map(|area| area.anonymous_kib).sum();
        if total_kib == 0 || count == 0 {
            return;
        }
        for _ in 0..count {
            let mut at = self.random.below(total_kib);
            let area = areas.iter().find(|area| {
                let is_here = at < area.anonymous_kib;
                at = at.saturating_sub(area.anonymous_kib);
                is_here
            });
            let mut page = [0; PAGE_BYTES];
            let place = area.and_then(|area| self.place(&map, area));
            if place.is_some_and(|place| memory.read_exact_at(&mut page[..], place).is_ok()) {
                self.add(Arc::new(page), weight / f64::from(count));
            }
        }
    }

    /// The address of some page of the area that is there.
    fn place(&mut self, map: &File, area: &Area) -> Option<u64> {
        let pages = (area.end - area.start) / PAGE_BYTES as u64;
        (0..TRIES).find_map(|_| {
            let place = area.start + self.random.below(pages) * PAGE_BYTES as u64;
            let mut entry = [0; 8];
            map.read_exact_at(&mut entry, place / PAGE_BYTES as u64 * 8).ok()?;
            (u64::from_ne_bytes(entry) & PRESENT != 0).then_some(place)
        })
    }

    fn add(&mut self, page: Arc<PageBytes>, weight: f64) {
        if weight <= 0.0 {
            return;
        }
        self.weight += weight;
        let chance = weight / self.weight;
        if self.places.is_empty() {
            self.places = vec![page; RESERVOIR_PAGES];
            return;
        }
        // How far it is to the next place that it takes: a geometric distribution.
        let mut place = 0.0;
        loop {
            let u = ((self.random.next() >> 11) + 1) as f64 / (1u64 << 53) as f64;
            place += (u.ln() / (-chance).ln_1p()).floor();
            let Some(taken) = self.places.get_mut(place as usize) else { return };
            *taken = page.clone();
            place += 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(byte: u8) -> Arc<PageBytes> {
        Arc::new([byte; PAGE_BYTES])
    }

    #[test]
    fn pages_stay_by_what_they_stand_for() {
        let mut reservoir = Reservoir::new();
        for i in 0..40_000 {
            // A quarter of all memory over time is in pages of threes.
            let (byte, weight) = if i % 2 == 0 { (1, 3.0) } else { (3, 1.0) };
            reservoir.add(page(byte), weight);
        }
        let pages = reservoir.into_pages();
        assert_eq!(pages.len(), RESERVOIR_PAGES);
        let threes = pages.iter().filter(|page| page[0] == 3).count();
        // Five standard deviations.
        assert!(threes.abs_diff(RESERVOIR_PAGES / 4) < 140, "{threes}");
    }

    #[test]
    fn a_long_look_counts_for_as_much_as_many_short_ones() {
        // More than fits is drawn, and half of the memory over time is in the last tenth of it.
        let mut reservoir = Reservoir::new();
        let drawn = RESERVOIR_PAGES * 3 / 2;
        for i in 0..drawn {
            let (byte, weight) = if i < drawn * 9 / 10 { (1, 1.0) } else { (3, 9.0) };
            reservoir.add(page(byte), weight);
        }
        let threes = reservoir.into_pages().iter().filter(|page| page[0] == 3).count();
        // Five standard deviations: of the places, and of how many the pages before left.
        assert!(threes.abs_diff(RESERVOIR_PAGES / 2) < 320, "{threes}");
    }

    #[test]
    fn pages_of_this_process_are_read() {
        let mut memory = memmap2::MmapMut::map_anon(512 * PAGE_BYTES).unwrap();
        // Half of it is there.
        memory[..256 * PAGE_BYTES].fill(0x77);
        let start = memory.as_ptr().addr() as u64;
        let end = start + memory.len() as u64;
        let area = Area { start, end, anonymous_kib: 1024, ..Area::default() };
        let mut reservoir = Reservoir::new();
        reservoir.draw(std::process::id(), &[area], 100, 1.0);
        let pages = reservoir.into_pages();
        // The other half may be there, too, as huge pages are.
        assert!(pages.chunk_by(Arc::ptr_eq).count() > 90);
        assert!(pages.iter().all(|page| matches!(page[..], [0x77, ..] | [0, ..])));
        assert!(pages.iter().any(|page| page[..] == [0x77; PAGE_BYTES][..]));
    }
}
