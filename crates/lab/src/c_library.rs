//! The library for C, `libuzswap.so`, as a C program has it: functions that the loader finds by
//! their names. `uzswap.h` documents them.
//!
//! # Safety charter
//! The types of the functions are those of `uzswap.h`. The library is never unloaded, so its
//! functions live as long as the process. A handle is made by `open`, and freed once, at the end of
//! its owner.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null, null_mut};

use uzswap_cli::pages::PageBytes;

/// Names another library than the one beside the command; Python's package goes by it, too.
const VARIABLE: &str = "UZSWAP_LIBRARY";
/// The area that all pages are in.
const AREA: u32 = 0;

/// `struct uzswap_config`.
#[repr(C)]
struct Config {
    size: usize,
    memory_bytes: u64,
    compressor: *const c_char,
    store_directory: *const c_char,
    flags: u64,
}

/// `uzswap_cache`.
type Handle = *mut c_void;

/// The library, loaded into this process.
pub struct Library {
    path: PathBuf,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    open: unsafe extern "C" fn(*const Config, *mut Handle) -> c_int,
    close: unsafe extern "C" fn(Handle),
    store: unsafe extern "C" fn(Handle, u32, u64, *const PageBytes) -> c_int,
    load: unsafe extern "C" fn(Handle, u32, u64, *mut PageBytes) -> c_int,
    drop: unsafe extern "C" fn(Handle, u32, u64) -> c_int,
}

/// The library's file: the one that the variable names, beside the command (a build directory), or
/// in `../lib` (an installation).
fn find(own: &Path, named: Option<OsString>) -> Result<PathBuf, String> {
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        return Ok(named.into());
    }
    let places = [own.with_file_name("libuzswap.so"), own.with_file_name("../lib/libuzswap.so.1")];
    places.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        let own = own.display();
        format!(
            "libuzswap.so is neither beside {own} nor in ../lib: build it (cargo build --release) \
             or name it in {VARIABLE}"
        )
    })
}

/// The function of a name.
///
/// # Safety
/// `library` is one that `dlopen` gave, and `F` the type of that function.
unsafe fn function<F: Copy>(library: *mut c_void, name: &CStr) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) }
    // SAFETY: the library is loaded, and the name ends with a zero.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    match found.is_null() {
        true => Err(format!("it has no {}", name.to_string_lossy())),
        // SAFETY: a function's address, of the type that the caller answers for.
        false => Ok(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) }),
    }
}

impl Library {
    /// Loads the library; the error says why there is none.
    pub fn load() -> Result<Library, String> {
        let own = std::env::current_exe().map_err(|e| format!("where this command is: {e}"))?;
        Library::at(find(&own, std::env::var_os(VARIABLE))?)
    }

    fn at(path: PathBuf) -> Result<Library, String> {
        let shown = path.display().to_string();
        let name =
            CString::new(path.as_os_str().as_bytes()).map_err(|e| format!("{shown}: {e}"))?;
        // SAFETY: the library's constructors are those of Rust's runtime, which run in any process.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            // SAFETY: a call has failed just now, so there is a sentence; the next call ends it.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(why.to_string_lossy().into_owned());
        }
        let load = || {
            // SAFETY: the types are those of uzswap.h.
            unsafe {
                Ok(Library {
                    path,
                    strerror: function(library, c"uzswap_strerror")?,
                    open: function(library, c"uzswap_cache_open")?,
                    close: function(library, c"uzswap_cache_close")?,
                    store: function(library, c"uzswap_cache_store")?,
                    load: function(library, c"uzswap_cache_load")?,
                    drop: function(library, c"uzswap_cache_drop")?,
                })
            }
        };
        load().map_err(|why: String| format!("{shown}: {why}"))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The library's sentence for a result that is not good.
    fn judge(&self, result: c_int) -> Result<(), String> {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: it takes any number, and answers a text that lasts.
        let said = unsafe { CStr::from_ptr((self.strerror)(result)) };
        Err(said.to_string_lossy().into_owned())
    }
}

/// A cache of the library's.
pub struct Cache<'a> {
    library: &'a Library,
    handle: NonNull<c_void>,
}

impl Cache<'_> {
    pub fn open<'a>(
        library: &'a Library,
        compressor: &str,
        memory_bytes: u64,
    ) -> Result<Cache<'a>, String> {
        let compressor = CString::new(compressor).map_err(|e| e.to_string())?;
        let config = Config {
            size: size_of::<Config>(),
            memory_bytes,
            compressor: compressor.as_ptr(),
            store_directory: null(),
            flags: 0,
        };
        let mut handle = null_mut();
        // SAFETY: the configuration is as the header wants it, and the text lives until the end.
        library.judge(unsafe { (library.open)(&config, &mut handle) })?;
        let handle = NonNull::new(handle).ok_or("a cache that is null")?;
        Ok(Cache { library, handle })
    }

    pub fn store(&self, number: u64, page: &PageBytes) -> Result<(), String> {
        // SAFETY: the cache is open, and the page is borrowed for the call.
        let result = unsafe { (self.library.store)(self.handle.as_ptr(), AREA, number, page) };
        self.library.judge(result)
    }

    pub fn load(&self, number: u64, page: &mut PageBytes) -> Result<(), String> {
        // SAFETY: as of `store`.
        let result = unsafe { (self.library.load)(self.handle.as_ptr(), AREA, number, page) };
        self.library.judge(result)
    }

    pub fn drop_page(&self, number: u64) -> Result<(), String> {
        // SAFETY: the cache is open.
        let result = unsafe { (self.library.drop)(self.handle.as_ptr(), AREA, number) };
        self.library.judge(result)
    }
}

impl Drop for Cache<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is ours alone, and this is its last use.
        unsafe { (self.library.close)(self.handle.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use uzswap_cli::pages::PAGE_BYTES;

    use super::*;

    #[test]
    fn the_library_is_found_beside_the_command_in_lib_or_by_its_variable() {
        let root = std::env::temp_dir().join(format!("uzswap-c-library-{}", std::process::id()));
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::create_dir_all(root.join("lib")).unwrap();
        let own = root.join("bin/uzswap-bench");
        assert!(find(&own, None).unwrap_err().contains(VARIABLE));
        fs::write(root.join("lib/libuzswap.so.1"), "").unwrap();
        assert_eq!(find(&own, None), Ok(root.join("bin/../lib/libuzswap.so.1")));
        fs::write(root.join("bin/libuzswap.so"), "").unwrap();
        assert_eq!(find(&own, Some("".into())), Ok(root.join("bin/libuzswap.so")));
        assert_eq!(find(&own, Some("/other.so".into())), Ok("/other.so".into()));
        // An empty file is no library, and the loader says so.
        let why = Library::at(root.join("bin/libuzswap.so")).err().unwrap();
        assert!(why.contains("libuzswap.so"), "{why}");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_library_without_our_functions_is_refused_by_name() {
        let why = Library::at("libc.so.6".into()).err().unwrap();
        assert_eq!(why, "libc.so.6: it has no uzswap_strerror");
    }

    #[test]
    fn pages_come_back_through_c() {
        let library = match Library::load() {
            Ok(library) => library,
            Err(why) => return println!("SKIPPED: {why}"),
        };
        let refused = Cache::open(&library, "snappy", 1 << 20).err().unwrap();
        assert_eq!(refused, "there is no such compressor");
        let cache = Cache::open(&library, "lz4", 1 << 20).unwrap();
        let page: PageBytes = core::array::from_fn(|i| (i / 16) as u8);
        cache.store(7, &page).unwrap();
        let mut back = [0; PAGE_BYTES];
        cache.load(7, &mut back).unwrap();
        assert!(back == page);
        cache.drop_page(7).unwrap();
        assert_eq!(cache.load(7, &mut back).unwrap_err(), "there is no page under this key");
    }
}
