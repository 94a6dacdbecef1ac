//! A store of values that is larger than its memory: keys in a map, values packed into pages, pages
//! in uzswap's cache, which compresses them and writes the coldest to a directory.
//!
//! ```text
//!   cargo run --release -p uzswap --example kv -- [VALUES [MEMORY_MIB [DIRECTORY]]]
//!
//!   put(key, value) --> place: page, range    [value|value|val...]   the open page, as it is
//!                                              [ page ][ page ][ page ]   in the cache
//! ```
//!
//! A value is never changed in place: its new form goes into the open page. The old form's bytes
//! are lost to its page, until nothing in that page is in use any more: then the page is dropped.

use std::collections::HashMap;
use std::path::Path;

use uzswap::{Cache, Config, Error, PAGE_BYTES, Page, Stats};

/// Where a value is.
#[derive(Clone, Copy)]
struct Place {
    page: u32,
    offset: u16,
    len: u16,
}

/// Values of 1 to 4096 bytes under keys of eight.
pub struct Store {
    cache: Cache,
    places: HashMap<u64, Place>,
    /// Bytes in use of each page; the last one is the open page.
    live: Vec<u16>,
    open: Page,
    filled: usize,
}

impl Store {
    /// A store with `memory_bytes` for its values; the coldest go to a file in `directory`.
    pub fn open(memory_bytes: u64, directory: &Path) -> Result<Store, Error> {
        let cache = Cache::open(&Config::new(memory_bytes).store(directory))?;
        let places = HashMap::new();
        Ok(Store { cache, places, live: vec![0], open: [0; PAGE_BYTES], filled: 0 })
    }

    fn open_page(&self) -> u32 {
        u32::try_from(self.live.len() - 1).expect("a cache has fewer pages")
    }

    /// Gives the open page to the cache and opens the next.
    fn turn_page(&mut self) -> Result<(), Error> {
        let page = self.open_page();
        // Nothing in it may be in use any more.
        if self.live[page as usize] > 0 {
            self.open[self.filled..].fill(0);
            self.cache.store(0, page.into(), &self.open)?;
        }
        self.live.push(0);
        self.filled = 0;
        Ok(())
    }

    /// Sets the value of a key.
    pub fn put(&mut self, key: u64, value: &[u8]) -> Result<(), Error> {
        assert!((1..=PAGE_BYTES).contains(&value.len()), "a value has 1 to 4096 bytes");
        if self.filled + value.len() > PAGE_BYTES {
            self.turn_page()?;
        }
        let (page, len) = (self.open_page(), value.len() as u16);
        self.open[self.filled..][..value.len()].copy_from_slice(value);
        let place = Place { page, offset: self.filled as u16, len };
        self.filled += value.len();
        self.live[page as usize] += len;
        match self.places.insert(key, place) {
            Some(old) => self.let_go(old),
            None => Ok(()),
        }
    }

    /// Removes a key; says whether it was there.
    pub fn remove(&mut self, key: u64) -> Result<bool, Error> {
        let Some(place) = self.places.remove(&key) else { return Ok(false) };
        self.let_go(place).map(|()| true)
    }

    fn let_go(&mut self, place: Place) -> Result<(), Error> {
        let live = &mut self.live[place.page as usize];
        *live -= place.len;
        if *live == 0 && place.page != self.open_page() {
            self.cache.drop_page(0, place.page.into())?;
        }
        Ok(())
    }

    /// The value of a key.
    pub fn get(&self, key: u64) -> Result<Option<Vec<u8>>, Error> {
        let Some(place) = self.places.get(&key) else { return Ok(None) };
        let range = usize::from(place.offset)..usize::from(place.offset + place.len);
        if place.page == self.open_page() {
            return Ok(Some(self.open[range].to_vec()));
        }
        let mut page = [0; PAGE_BYTES];
        self.cache.load(0, place.page.into(), &mut page)?;
        Ok(Some(page[range].to_vec()))
    }

    /// The cache's statistics.
    pub fn stats(&self) -> Result<Stats, Error> {
        self.cache.stats()
    }
}

/// The value of a key in its nth version: a record in text, of 200 to 700 bytes.
fn value(key: u64, version: u32) -> Vec<u8> {
    let mut text = format!("{{\"key\": {key}, \"version\": {version}, \"tags\": [");
    let mut x = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) + u64::from(version);
    let end = 200 + (x >> 32) as usize % 500;
    while text.len() < end {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text += &format!("\"tag-{:04x}\", ", x >> 48);
    }
    text.into_bytes()
}

/// Puts values, changes every tenth, removes every thousandth, and reads as many at random.
fn run(values: u64, memory_bytes: u64, directory: &Path) -> Result<(Stats, u64), Error> {
    let mut store = Store::open(memory_bytes, directory)?;
    let mut bytes = 0;
    for key in 0..values {
        let value = value(key, 1);
        bytes += value.len() as u64;
        store.put(key, &value)?;
    }
    for key in (0..values).step_by(10) {
        store.put(key, &value(key, 2))?;
    }
    for key in (0..values).step_by(1000) {
        assert!(store.remove(key)?);
    }
    let mut random = 1u64;
    for _ in 0..values {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let key = (random >> 33) % values;
        let version = if key.is_multiple_of(10) { 2 } else { 1 };
        let expected = (!key.is_multiple_of(1000)).then(|| value(key, version));
        assert!(store.get(key)? == expected, "key {key} has another value");
    }
    assert_eq!(store.get(values)?, None);
    Ok((store.stats()?, bytes))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut given = std::env::args().skip(1);
    let values = given.next().map_or(Ok(300_000), |text| text.parse())?;
    let memory_mib: u64 = given.next().map_or(Ok(32), |text| text.parse())?;
    let directory = given.next().map_or_else(std::env::temp_dir, Into::into);
    let (stats, bytes) = run(values, memory_mib << 20, &directory)?;
    println!(
        "{values} values of {} MiB in {} MiB of memory; {} MiB in the store",
        bytes >> 20,
        stats.used_bytes >> 20,
        stats.store_bytes >> 20
    );
    Ok(())
}

#[test]
fn values_that_are_larger_than_memory_come_back() {
    let memory_bytes = 16 << 20;
    let (stats, bytes) = run(150_000, memory_bytes, &std::env::temp_dir()).unwrap();
    assert!(bytes > 2 * memory_bytes, "{bytes} bytes would fit");
    assert!(stats.used_bytes <= memory_bytes + memory_bytes / 16, "{stats:?}");
    assert!(stats.store_pages > 0 && stats.store_error == 0, "{stats:?}");
}
