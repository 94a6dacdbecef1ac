//! Interception: every `syscall` instruction that the program can reach goes through uzswap.
//!
//! Programs enter the kernel by a two-byte instruction. libc has some five hundred of them, and the
//! dynamic loader, the vDSO's fallbacks and a few other objects have some, too. Each is replaced,
//! in memory, by a jump into a *trampoline*, which looks up the *route* of the system-call number:
//! route 0 runs the instruction with nothing around it, the others call the *hook*. No symbol is
//! interposed and libc is not asked, so calls that libc makes for itself (stdio, malloc, threads)
//! are seen like all others.
//!
//! ```text
//!  maps.rs     what is mapped where
//!  elf.rs      an object's segments, identity, function bounds
//!  analyze.rs  object -> where the instructions are and how each can be replaced
//!  analyze/sweep.rs  ... where no table says which bytes are functions (Go, musl)
//!  table.rs    ... that, kept in a file so that it is done once per object and machine
//!  cache.rs    the directory of such files
//!  trampoline.rs   ... that -> the code that is jumped to
//!  apply.rs    ... and the jumps
//!  shared.rs   both as a file's pages, the same for all processes
//!  routes.rs   which calls go from a trampoline to the hook
//!  entry.rs    ... from there to the hook and back
//!  frame.rs    the registers and stacks of a hook
//!  vectors.rs  ... and how its vector registers are saved
//!  cancel_word.rs  ... and whether its call can be cancelled
//!  thread_slot.rs  a word for each thread
//!  alloc.rs    memory for all of it
//!  mem.rs      memcpy and its kin, so that they are not libc's
//! ```
//!
//! Vocabulary: an *object* is an ELF file in memory. A *site* is one instruction with its plan.
//! An *unpatched* site was found, but left as it is: calls made there are not seen, so such sites
//! are counted.
//!
//! Objects that are there at start are patched by [`patch_all_loaded`], before any other code of
//! the program runs; objects that the loader maps later by [`patch_file_mapping`], from the hook of
//! `mmap`, before anything in them can run.
//!
//! Lock order: `PATCHER` (taken by these two), then the allocator's. Nothing is called under them
//! but this module.
//!
//! # Safety charter
//! This file's own unsafe code reads headers of mapped objects and maps files read-only; the
//! promises that `apply` asks for (nobody executes the text that is changed) are the callers' and
//! stated there.
#![allow(unsafe_code)]

pub mod alloc;
mod analyze;
mod apply;
mod cache;
mod cancel_word;
mod elf;
mod entry;
mod frame;
mod maps;
mod mem;
mod routes;
mod shared;
mod table;
mod thread_slot;
mod trampoline;
mod vectors;

use core::cell::OnceCell;
use core::ops::Range;
use std::vec::Vec;

use uzswap::sys::mem::{MAP_PRIVATE, PROT_EXEC, PROT_READ};
use uzswap::sys::sync::{Mutex, MutexGuard};
use uzswap::sys::{PAGE_SIZE, nr};
use uzswap::uz_syscall;

pub use cancel_word::cancel_word;
pub use entry::{
    CloneParentFn, Hook, Hooks, ThreadStartFn, call_on_stack, call_on_stack_saving_vectors,
    set_hooks,
};
pub use frame::{
    ACTION_CLONE_THREAD, ACTION_INLINE, ACTION_RETURN, HOOK_STACK_BYTES, HookFrame,
    PIECE_GIVEN_BACK, ThreadStart,
};
pub use routes::{ROUTE_COUNT, ROUTE_HOOK, ROUTE_INLINE, ROUTE_LIGHT_HOOK, ROUTE_TABLE};
pub use thread_slot::{
    are_slots_in_gs, keep_slots_in_gs, thread_slot_address, thread_slot_get, thread_slot_of,
    thread_slot_set,
};
pub use vectors::{force_save_method, vector_state_bytes};

use analyze::analyze;
use apply::{Source, Text, redirect};
use cache::CacheDir;
use elf::Image;
use maps::{Mapping, Maps, Pagemap};
use shared::Shared;
use table::{Analysis, Counts};
use trampoline::Trampolines;

struct Patcher {
    trampolines: Trampolines,
    cache_path: Vec<u8>,
}

/// Protects the trampolines; held while an object is patched.
static PATCHER: Mutex<Patcher> =
    Mutex::new(Patcher { trampolines: Trampolines::new(), cache_path: Vec::new() });

/// Where the lock's guard is kept while the process forks.
static FORKING: Mutex<Option<MutexGuard<'static, Patcher>>> = Mutex::new(None);

/// The outcome for one object.
#[derive(Clone, Debug, Default)]
pub struct ObjectReport {
    pub name: Vec<u8>,
    /// System-call instructions found.
    pub sites: u32,
    pub patched: u32,
}

/// The outcome for a set of objects.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Objects looked at.
    pub objects: u32,
    pub sites: u32,
    pub patched: u32,
    pub unpatched: u32,
    /// Those objects that have system-call instructions.
    pub details: Vec<ObjectReport>,
}

impl Report {
    fn add(&mut self, counts: Counts, patched: usize, name: &[u8]) {
        let sites = (counts.sites + counts.unpatchable) as u32;
        let object = ObjectReport { name: name.into(), sites, patched: patched as u32 };
        self.objects += 1;
        self.sites += object.sites;
        self.patched += object.patched;
        self.unpatched += object.sites - object.patched;
        if object.sites > 0 {
            self.details.push(object);
        }
    }
}

/// Holds this module's lock over a fork, so that the child can go on using it. Followed by one
/// [`after_fork`] in the parent and one in the child.
pub fn before_fork() {
    let patcher = PATCHER.lock();
    *FORKING.lock() = Some(patcher);
}

/// Releases the lock that [`before_fork`] holds.
pub fn after_fork() {
    let patcher = FORKING.lock().take();
    drop(patcher);
}

/// Where the trampolines are (a part of this library's .bss that is executable).
pub fn trampoline_range() -> Range<usize> {
    trampoline::trampoline_range()
}

/// Patches everything that is mapped now, except this library itself. `cache_dir` is where patch
/// tables and texts are kept, made if missing; without it, or if it cannot be trusted, every object
/// is analysed anew.
///
/// # Safety
/// The calling thread must be the only one of the process, as it is while the loader runs
/// constructors.
pub unsafe fn patch_all_loaded(cache_dir: Option<&[u8]>) -> Report {
    let mut patcher = PATCHER.lock();
    patcher.cache_path = cache_dir.unwrap_or_default().into();
    let cache = cache_dir.and_then(CacheDir::open);
    let mut maps = Maps::default();
    let list = maps::read_maps();
    let mut pagemap = if cache.is_some() { Pagemap::open() } else { None };
    let own =
        list.iter().find(|m| (m.start..m.end).contains(&(patch_all_loaded as *const () as usize)));
    let own = own.map(|m| (m.device, m.inode));
    let mut report = Report::default();
    // Private copies take the first trampolines that are free, so shared texts come first: they
    // need the trampolines at their distance.
    let (vdso, files): (Vec<&Mapping>, Vec<&Mapping>) = list.iter().rev().partition(|m| is_vdso(m));
    for m in files.into_iter().chain(vdso) {
        if Some((m.device, m.inode)) == own {
            continue;
        }
        // SAFETY: one thread, and it is here: what is listed stays mapped.
        let Some(image) = (unsafe { object_of(m, &list) }) else { continue };
        // SAFETY: as above, and so nobody executes it.
        let (counts, patched) = unsafe {
            patch_loaded(
                m,
                &image,
                cache.as_ref(),
                &mut pagemap,
                &mut patcher.trampolines,
                &mut maps,
            )
        };
        report.add(counts, patched, &m.name);
    }
    report
}

fn is_vdso(m: &Mapping) -> bool {
    m.name == b"[vdso]"
}

/// Patches an object that is mapped, by shared pages if its table and the place for its trampolines
/// allow it. Returns its counts, and the number of patched sites.
///
/// # Safety
/// `m` must be the object's text, and nobody may be executing it.
unsafe fn patch_loaded(
    m: &Mapping,
    image: &Image,
    cache: Option<&CacheDir>,
    pagemap: &mut Option<Pagemap>,
    trampolines: &mut Trampolines,
    maps: &mut Maps,
) -> (Counts, usize) {
    let text = Text { start: m.start, end: m.end, prot: m.prot };
    let bias = image.bias().unwrap_or(0);
    let name = cache_name(image, || cache::stat_path(&m.name).ok().filter(|s| s.inode == m.inode));
    let mut path = m.name.clone();
    path.push(0);
    let source =
        if is_vdso(m) { Source::None } else { Source::Path { path: &path, offset: m.offset } };
    let kept = cache.zip(name.as_deref());
    let analysis = OnceCell::new();
    let whole = || analysis.get_or_init(|| load_or_analyze(image, kept));
    // For an object that has a file, the head of the table may be enough.
    let kept_of_file = kept.filter(|_| !is_vdso(m));
    let counts =
        kept_of_file.and_then(|(c, n)| table::counts(c, n)).unwrap_or_else(|| whole().counts());
    // The code behind the links of shared texts is for programs of libc.
    let shared = kept_of_file.filter(|_| counts.sites > 0 && !needs_hook_stack(image));
    let shared = shared.and_then(|(c, n)| Shared::new(c, n, counts, m, trampolines));
    let served = match (shared, pagemap) {
        // SAFETY: nobody executes it, as the caller says.
        (Some(s), Some(p)) => unsafe { s.serve(trampolines, p, source, bias, whole) },
        _ => false,
    };
    if served || counts.sites == 0 {
        return (counts, counts.sites);
    }
    let links = links_of(image);
    // SAFETY: as above.
    let patched = unsafe { redirect(trampolines, &whole().sites, bias, text, source, links, maps) };
    (counts, patched)
}

/// The object whose text `m` is, if all of it is there to be read.
///
/// # Safety
/// The mappings in `list` must stay for as long as the image is used.
unsafe fn object_of<'a>(m: &Mapping, list: &[Mapping]) -> Option<Image<'a>> {
    let is_text = m.prot & PROT_EXEC != 0 && m.prot & PROT_READ != 0 && m.private;
    if !is_text || !(m.inode != 0 || m.name == b"[vdso]") {
        return None;
    }
    // The header is in the first mapping of the object, at file offset 0.
    let same_file = |h: &&Mapping| h.inode == m.inode && h.device == m.device && h.start <= m.start;
    let header =
        list.iter().rev().filter(same_file).find(|h| h.offset == 0 && h.prot & PROT_READ != 0)?;
    // SAFETY: the header's mapping is readable; that the rest is there is checked before it is
    // used.
    let image = unsafe { Image::of_memory(header.start, header.end - header.start) }?;
    is_completely_mapped(&image, list).then_some(image)
}

/// Patches an object that was just mapped: `len` bytes of `fd` from `offset`, at `addr`, executable
/// with `prot`. Its other segments need not be there yet. A file that is no ELF object is left
/// alone.
///
/// # Safety
/// The mapping must be as described, and nobody may be executing it: to be called after the `mmap`
/// succeeded and before its address is known to the program.
pub unsafe fn patch_file_mapping(
    fd: i32,
    addr: usize,
    len: usize,
    offset: usize,
    prot: usize,
) -> Report {
    let mut report = Report::default();
    let Some(file) = FileBytes::map(fd) else { return report };
    let Some(image) = Image::of_file(file.bytes()) else { return report };
    // The mapping's segment, and the address at which virtual address 0 would be.
    let len = len.next_multiple_of(PAGE_SIZE);
    let (from, to) = (offset as u64, (offset + len) as u64);
    let segment = image.segments.iter().find(|s| {
        s.executable
            && s.offset / 4096 * 4096 < to
            && s.offset + s.file_bytes > from
            && s.file_bytes > 0
    });
    let Some(s) = segment else { return report };
    let bias = (addr as u64).wrapping_sub(from).wrapping_add(s.offset).wrapping_sub(s.vaddr);
    // The loader may have mapped the whole span like its first segment; bytes behind the segment
    // are not text.
    let end = (s.offset + s.file_bytes).next_multiple_of(PAGE_SIZE as u64).min(to);
    let text = Text { start: addr, end: addr + (end - from) as usize, prot };
    let mut patcher = PATCHER.lock();
    let cache =
        if patcher.cache_path.is_empty() { None } else { CacheDir::open(&patcher.cache_path) };
    let name = cache_name(&image, || cache::stat_fd(fd).ok());
    let analysis = load_or_analyze(&image, cache.as_ref().zip(name.as_deref()));
    let (source, mut maps) = (Source::Fd { fd, offset }, Maps::default());
    // A shared mapping would be changed in the file.
    if !analysis.sites.is_empty()
        && !maps.list().iter().any(|m| m.private && (m.start..m.end).contains(&addr))
    {
        return report;
    }
    // SAFETY: the caller's.
    let patched = unsafe {
        redirect(
            &mut patcher.trampolines,
            &analysis.sites,
            bias,
            text,
            source,
            links_of(&image),
            &mut maps,
        )
    };
    report.add(analysis.counts(), patched, b"");
    report
}

/// Whether calls of an object may find no room on the stack that they are made on: Go's, and all of
/// a program without libc's loader (musl's threads unmap the stack that they are on).
fn needs_hook_stack(image: &Image) -> bool {
    are_slots_in_gs() || image.is_go()
}

fn links_of(image: &Image) -> usize {
    trampoline::common_links(needs_hook_stack(image))
}

/// Whether every segment of a memory image is there to be read.
fn is_completely_mapped(image: &Image, list: &[Mapping]) -> bool {
    let bias = image.bias().unwrap_or(0);
    image.segments.iter().filter(|s| s.readable && s.file_bytes > 0).all(|s| {
        let mut at = bias.wrapping_add(s.vaddr) as usize;
        let Some(end) = at.checked_add(s.file_bytes as usize) else { return false };
        for m in list.iter().filter(|m| m.prot & PROT_READ != 0) {
            if (m.start..m.end).contains(&at) {
                at = m.end;
            }
        }
        at >= end
    })
}

/// An object's analysis, `kept` in a directory under a name.
fn load_or_analyze(image: &Image, kept: Option<(&CacheDir, &[u8])>) -> Analysis {
    let Some((cache, name)) = kept else { return analyze(image) };
    table::load(cache, name).unwrap_or_else(|| {
        let analysis = analyze(image);
        table::save(cache, name, &analysis);
        analysis
    })
}

/// The name of an object's patch table: its build id, or else the identity of its file.
fn cache_name(image: &Image, stat: impl FnOnce() -> Option<cache::Stat>) -> Option<Vec<u8>> {
    let mut name = Vec::new();
    match image.build_id() {
        Some(id) => cache::push_hex(&mut name, id),
        None => {
            let s = stat()?;
            for part in [s.device, s.inode, s.bytes, s.modified_ns] {
                cache::push_hex(&mut name, &part.to_be_bytes());
            }
        }
    }
    name.push(b'-');
    cache::push_hex(&mut name, &image.span().to_be_bytes());
    Some(name)
}

/// A file, mapped for reading.
struct FileBytes {
    addr: usize,
    len: usize,
}

impl FileBytes {
    fn map(fd: i32) -> Option<FileBytes> {
        let len = usize::try_from(cache::stat_fd(fd).ok()?.bytes).ok().filter(|&l| l >= 64)?;
        // SAFETY: a new mapping hits nothing.
        let addr = unsafe { uz_syscall!(nr::MMAP, 0, len, PROT_READ, MAP_PRIVATE, fd, 0) }.ok()?;
        Some(FileBytes { addr, len })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for as long as self lives. (A process that cuts a library short while it
        // is loaded kills its users.)
        unsafe { core::slice::from_raw_parts(self.addr as *const u8, self.len) }
    }
}

impl Drop for FileBytes {
    fn drop(&mut self) {
        // SAFETY: our own mapping.
        let _ = unsafe { uz_syscall!(nr::MUNMAP, self.addr, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Late objects are patched on a stack of the runtime's, which is not large.
    #[test]
    fn patching_needs_little_stack() {
        extern "C" fn work(arg: *mut u8) {
            // SAFETY: the test below passes this.
            let (fd, sites) = unsafe { &mut *arg.cast::<(i32, u32)>() };
            let file = FileBytes::map(*fd).unwrap();
            let image = Image::of_file(file.bytes()).unwrap();
            let dir =
                std::env::temp_dir().join(std::format!("uzswap-stack-{}", std::process::id()));
            let path = dir.as_os_str().as_encoded_bytes();
            let cache = CacheDir::open(path).unwrap();
            for _ in 0..2 {
                let name = cache_name(&image, || None);
                *sites =
                    load_or_analyze(&image, Some(&cache).zip(name.as_deref())).sites.len() as u32;
            }
            std::fs::remove_dir_all(dir).unwrap();
        }
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps.split_whitespace().find(|w| w.contains("/libc.so")).unwrap();
        let file = std::fs::File::open(libc).unwrap();
        let mut stack = std::vec![0xa5u8; 256 << 10];
        let mut arg = (std::os::fd::AsRawFd::as_raw_fd(&file), 0);
        // SAFETY: a fresh stack; the function returns.
        unsafe {
            call_on_stack(stack.as_mut_ptr_range().end as usize, work, (&raw mut arg).cast())
        };
        assert!(arg.1 > 300);
        let used = stack.len() - stack.iter().position(|&b| b != 0xa5).unwrap();
        assert!(used < 48 << 10, "{used}");
    }
}
