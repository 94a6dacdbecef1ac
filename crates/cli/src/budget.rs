//! How much memory a program may have here: the default of `--memory`.
//!
//! ```text
//!  /proc/self/cgroup ──> own group ─┐
//!  /proc/self/mountinfo ─> mounts ──┴─> levels: own directory, its parent, ... up to the mount
//!                                        each: limit - (usage - file cache that can be dropped)
//!  /proc/meminfo ─────────────────────> MemAvailable
//!                                        the smallest of all, less a margin = the budget
//! ```
//!
//! Both kinds of control groups are read: v1 (`memory.limit_in_bytes`) and v2 (`memory.max`,
//! `memory.high`). In a container the groups above our own are often invisible; v1 still tells
//! their smallest limit (`hierarchical_memory_limit`), v2 does not. Swap is not counted: where a
//! group may swap, it has that in addition.
//!
//! All files are read below a root directory, which is `/` except in tests.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory that must stay free beside the managed, in bytes: see [`margin_bytes`].
const MARGIN_MIN_BYTES: u64 = 12 << 20;
const MARGIN_PERCENT: u64 = 6;

/// The margin between what is free and the budget. The kernel charges a group with more than the
/// pages that uzswap counts. Page tables take a 512th of all that the program has ever touched: 1.6
/// % of the limit for a program eight times as large. Threads and processes have stacks and
/// descriptors. The file pages of the program and its libraries count, and so do per-CPU stocks and
/// `uzswap run` itself. All of this grows with the limit, except for a few MiB that every process
/// needs.
pub fn margin_bytes(whole_bytes: u64) -> u64 {
    MARGIN_MIN_BYTES.max(whole_bytes / 100 * MARGIN_PERCENT)
}

/// Which interface a group is read by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

/// The group that limits us most: of all levels that have a limit, the one that leaves least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    pub version: Version,
    /// The directory whose limit it is.
    pub directory: PathBuf,
    pub limit_bytes: u64,
    /// Memory that the group may still take: limit less usage, plus the file cache that can be
    /// dropped.
    pub available_bytes: u64,
}

/// The memory that this process may count on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    pub group: Option<GroupLimit>,
    pub ram_bytes: u64,
    pub ram_available_bytes: u64,
}

impl Budget {
    /// Reads the budget of the machine that we run on.
    pub fn read() -> Result<Budget, String> {
        Budget::read_below(Path::new("/"))
    }

    fn read_below(root: &Path) -> Result<Budget, String> {
        let meminfo = fs::read_to_string(root.join("proc/meminfo"))
            .map_err(|e| format!("cannot read /proc/meminfo: {e}"))?;
        let field = |name: &str| {
            let line = meminfo.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        let ram_bytes = field("MemTotal").ok_or("/proc/meminfo has no MemTotal")?;
        // Before Linux 3.14, and in some containers, there is no MemAvailable.
        let ram_available_bytes = field("MemAvailable").or(field("MemFree")).unwrap_or(ram_bytes);
        let group = Levels::find_below(root).and_then(|levels| levels.tightest_below(root));
        Ok(Budget { group, ram_bytes, ram_available_bytes })
    }

    /// The whole of a percentage: the group's limit, or all RAM.
    pub fn whole_bytes(&self) -> u64 {
        self.group.as_ref().map_or(self.ram_bytes, |g| g.limit_bytes.min(self.ram_bytes))
    }

    /// Memory that can be taken now.
    pub fn available_bytes(&self) -> u64 {
        self.group
            .as_ref()
            .map_or(self.ram_available_bytes, |g| g.available_bytes.min(self.ram_available_bytes))
    }

    pub fn margin_bytes(&self) -> u64 {
        margin_bytes(self.whole_bytes())
    }

    /// The default of `--memory`.
    pub fn default_memory_bytes(&self) -> u64 {
        self.available_bytes().saturating_sub(self.margin_bytes())
    }

    /// The group that leaves least, if it leaves less than the machine.
    pub fn tightest_group(&self) -> Option<&GroupLimit> {
        self.group.as_ref().filter(|group| group.available_bytes <= self.ram_available_bytes)
    }
}

/// The memory groups that we are in: directories of our own and of its ancestors, as far as they
/// can be seen.
#[derive(Clone, Debug)]
pub struct Levels {
    version: Version,
    directories: Vec<PathBuf>,
}

impl Levels {
    /// Those that have a limit, to be looked at often: the others' statistics may be long ones.
    pub fn find_limited() -> Option<Levels> {
        let root = Path::new("/");
        let mut levels = Levels::find_below(root)?;
        let version = levels.version;
        levels.directories.retain(|directory| limit(version, root, directory).is_some());
        Some(levels)
    }

    fn find_below(root: &Path) -> Option<Levels> {
        let membership = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
        let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
        let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
        // `4:memory:/path` is v1's memory controller; `0::/path` is v2. Where both exist, memory is
        // v1's.
        let own_path = |wanted: &dyn Fn(&str, &str) -> bool| {
            membership.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':');
                let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
                wanted(id, controllers).then(|| path.to_string())
            })
        };
        let v1 = own_path(&|_, controllers| controllers.split(',').any(|c| c == "memory"));
        let (version, path) = match v1 {
            Some(path) => (Version::V1, path),
            None => {
                (Version::V2, own_path(&|id, controllers| id == "0" && controllers.is_empty())?)
            }
        };
        let directories = mounts
            .iter()
            .filter(|m| m.version == version)
            .filter_map(|m| m.levels(root, &path))
            // A second mount of the hierarchy may show only a part of it.
            .max_by_key(|levels| levels.len())?;
        Some(Levels { version, directories })
    }

    /// The tightest limit among them now, if there is one.
    pub fn tightest(&self) -> Option<GroupLimit> {
        self.tightest_below(Path::new("/"))
    }

    fn tightest_below(&self, root: &Path) -> Option<GroupLimit> {
        self.directories
            .iter()
            .filter_map(|directory| limit(self.version, root, directory))
            .min_by_key(|limit| limit.available_bytes)
    }
}

/// One mount of a cgroup hierarchy that can hold the memory controller.
struct Mount {
    version: Version,
    /// The group that the mount point shows, as a path in the hierarchy.
    root: String,
    point: PathBuf,
}

impl Mount {
    /// A line of mountinfo: `31 23 0:32 /root /mount/point rw,... [tags] - cgroup source
    /// rw,memory`.
    fn parse(line: &str) -> Option<Mount> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let (kind, _source, options) = (right.next()?, right.next()?, right.next().unwrap_or(""));
        let version = match kind {
            "cgroup" if options.split(',').any(|o| o == "memory") => Version::V1,
            "cgroup2" => Version::V2,
            _ => return None,
        };
        Some(Mount { version, root: unescape(root), point: PathBuf::from(unescape(point)) })
    }

    /// The directories of our own group and of its ancestors, own first, as far as this mount shows
    /// them.
    fn levels(&self, root: &Path, own_path: &str) -> Option<Vec<PathBuf>> {
        let own = Path::new(own_path);
        // Outside of our cgroup namespace the kernel shows `/../..`: such a mount, or such a group
        // of ours, cannot be placed, and the mount point is the nearest ancestor there is. A mount
        // of another branch is treated alike.
        let hidden = |p: &Path| p.components().any(|c| c == std::path::Component::ParentDir);
        let relative = match own.strip_prefix(&self.root) {
            Ok(relative) if !hidden(own) && !hidden(Path::new(&self.root)) => relative,
            _ => Path::new(""),
        };
        let deepest = self.point.join(relative);
        let levels: Vec<PathBuf> = deepest
            .ancestors()
            .take_while(|directory| directory.starts_with(&self.point))
            .filter(|directory| below(root, directory).is_dir())
            .map(|directory| {
                // `join("")` leaves a trailing slash.
                directory.components().collect()
            })
            .collect();
        (!levels.is_empty()).then_some(levels)
    }
}

/// mountinfo writes blanks and backslashes as octal escapes.
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out += &rest[..at];
        match rest.get(at + 1..at + 4).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte as char);
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out + rest
}

fn below(root: &Path, absolute: &Path) -> PathBuf {
    root.join(absolute.strip_prefix("/").unwrap_or(absolute))
}

fn read_number(path: PathBuf) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn stat_fields<'a>(stat: &'a str, names: &'a [&str]) -> impl Iterator<Item = u64> + 'a {
    stat.lines().filter_map(|line| {
        let (name, value) = line.split_once(' ')?;
        if names.contains(&name) { value.trim().parse().ok() } else { None }
    })
}

fn limit(version: Version, root: &Path, directory: &Path) -> Option<GroupLimit> {
    match version {
        Version::V1 => limit_v1(root, directory),
        Version::V2 => limit_v2(root, directory),
    }
}

fn limit_v1(root: &Path, directory: &Path) -> Option<GroupLimit> {
    let here = below(root, directory);
    let stat = fs::read_to_string(here.join("memory.stat")).unwrap_or_default();
    let own = read_number(here.join("memory.limit_in_bytes"));
    let inherited = stat_fields(&stat, &["hierarchical_memory_limit"]).next();
    // "No limit" is the largest whole number of pages; its exact value differs between kernels.
    let limit_bytes = own.into_iter().chain(inherited).min().filter(|limit| *limit < 1 << 60)?;
    let used = read_number(here.join("memory.usage_in_bytes")).unwrap_or(0);
    let file_cache: u64 = stat_fields(&stat, &["total_inactive_file", "total_active_file"]).sum();
    Some(GroupLimit {
        version: Version::V1,
        directory: directory.to_path_buf(),
        limit_bytes,
        available_bytes: limit_bytes.saturating_sub(used.saturating_sub(file_cache)),
    })
}

fn limit_v2(root: &Path, directory: &Path) -> Option<GroupLimit> {
    let here = below(root, directory);
    // Above memory.high the kernel slows a group down until it stands still, so for us it is a
    // limit too. Both files say `max` where there is none.
    let limit_bytes =
        ["memory.max", "memory.high"].iter().filter_map(|f| read_number(here.join(f))).min()?;
    let used = read_number(here.join("memory.current")).unwrap_or(0);
    let stat = fs::read_to_string(here.join("memory.stat")).unwrap_or_default();
    let cache: u64 =
        stat_fields(&stat, &["inactive_file", "active_file", "slab_reclaimable"]).sum();
    Some(GroupLimit {
        version: Version::V2,
        directory: directory.to_path_buf(),
        limit_bytes,
        available_bytes: limit_bytes.saturating_sub(used.saturating_sub(cache)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A directory tree that looks like the machine's, removed when dropped.
    struct Fixture(PathBuf);

    impl Fixture {
        fn new(name: &str) -> Fixture {
            let root =
                std::env::temp_dir().join(format!("uzswap-budget-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            let fixture = Fixture(root);
            fixture.file(
                "proc/meminfo",
                "MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 4194304 kB\n",
            );
            fixture
        }

        fn file(&self, path: &str, text: &str) -> &Fixture {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        fn v1(
            &self,
            directory: &str,
            limit: u64,
            used: u64,
            hierarchical: u64,
            cache: u64,
        ) -> &Fixture {
            self.file(&format!("{directory}/memory.limit_in_bytes"), &format!("{limit}\n"))
                .file(&format!("{directory}/memory.usage_in_bytes"), &format!("{used}\n"))
                .file(
                    &format!("{directory}/memory.stat"),
                    &format!(
                        "cache 99\ninactive_file 1\nhierarchical_memory_limit {hierarchical}\n\
                         total_inactive_file {}\ntotal_active_file {}\ntotal_unevictable 5\n",
                        cache / 2,
                        cache - cache / 2
                    ),
                )
        }

        fn v2(&self, directory: &str, max: &str, high: &str, current: u64, cache: u64) -> &Fixture {
            self.file(&format!("{directory}/memory.max"), &format!("{max}\n"))
                .file(&format!("{directory}/memory.high"), &format!("{high}\n"))
                .file(&format!("{directory}/memory.current"), &format!("{current}\n"))
                .file(
                    &format!("{directory}/memory.stat"),
                    &format!("anon 7\nfile 9\ninactive_file {cache}\n"),
                )
        }

        fn budget(&self) -> Budget {
            Budget::read_below(&self.0).unwrap()
        }

        fn group(&self) -> GroupLimit {
            self.budget().group.expect("a limit")
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const NO_LIMIT_V1: u64 = 9_223_372_036_854_771_712;
    const V1_MOUNT: &str = "22 27 0:21 / /proc rw - proc proc rw\n\
                            35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup \
                            cgroup rw,memory\n\
                            41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const V2_MOUNT: &str =
        "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn v1_takes_the_level_that_leaves_least() {
        let f = Fixture::new("v1");
        f.file("proc/self/cgroup", "9:pids:/\n4:cpu,memory:/outer/inner\n0::/\n")
            .file("proc/self/mountinfo", V1_MOUNT)
            .v1("sys/fs/cgroup/memory", NO_LIMIT_V1, 999 * MIB, NO_LIMIT_V1, 0)
            // The outer group has the larger limit, but less of it is left.
            .v1("sys/fs/cgroup/memory/outer", 1024 * MIB, 900 * MIB, 1024 * MIB, 100 * MIB)
            .v1("sys/fs/cgroup/memory/outer/inner", 512 * MIB, 12 * MIB, 512 * MIB, 4 * MIB);
        let group = f.group();
        assert_eq!(group.version, Version::V1);
        assert_eq!(group.directory, Path::new("/sys/fs/cgroup/memory/outer"));
        assert_eq!(group.limit_bytes, 1024 * MIB);
        assert_eq!(group.available_bytes, 224 * MIB);
        let budget = f.budget();
        assert_eq!(budget.whole_bytes(), 1024 * MIB);
        assert_eq!(budget.default_memory_bytes(), 224 * MIB - margin_bytes(1024 * MIB));
    }

    #[test]
    fn v1_in_a_container_knows_the_limit_of_groups_it_cannot_see() {
        let f = Fixture::new("v1-container");
        // Without a cgroup namespace: the mount shows our own group, and the path is the host's.
        f.file("proc/self/cgroup", "4:memory:/docker/0123abc\n")
            .file(
                "proc/self/mountinfo",
                "35 31 0:32 /docker/0123abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
            )
            .v1("sys/fs/cgroup/memory", NO_LIMIT_V1, 10 * MIB, 256 * MIB, 2 * MIB);
        let group = f.group();
        assert_eq!((group.limit_bytes, group.available_bytes), (256 * MIB, 248 * MIB));
        assert_eq!(group.directory, Path::new("/sys/fs/cgroup/memory"));
    }

    #[test]
    fn v1_without_any_limit_counts_available_memory() {
        let f = Fixture::new("v1-none");
        f.file("proc/self/cgroup", "4:memory:/\n").file("proc/self/mountinfo", V1_MOUNT).v1(
            "sys/fs/cgroup/memory",
            NO_LIMIT_V1,
            10 * MIB,
            NO_LIMIT_V1,
            0,
        );
        let budget = f.budget();
        assert_eq!(budget.group, None);
        assert_eq!(budget.whole_bytes(), 8192 * MIB);
        assert_eq!(budget.default_memory_bytes(), 4096 * MIB - margin_bytes(8192 * MIB));
    }

    #[test]
    fn v2_nested_with_max_and_high() {
        let f = Fixture::new("v2");
        f.file("proc/self/cgroup", "0::/user.slice/app/job\n")
            .file("proc/self/mountinfo", V2_MOUNT)
            .v2("sys/fs/cgroup/user.slice", "max", "max", 0, 0)
            .v2("sys/fs/cgroup/user.slice/app", "1073741824", "805306368", 256 * MIB, 64 * MIB)
            .v2("sys/fs/cgroup/user.slice/app/job", "max", "max", 200 * MIB, 0);
        let group = f.group();
        assert_eq!(group.version, Version::V2);
        assert_eq!(group.directory, Path::new("/sys/fs/cgroup/user.slice/app"));
        assert_eq!(group.limit_bytes, 768 * MIB);
        assert_eq!(group.available_bytes, 576 * MIB);
    }

    #[test]
    fn v2_all_max_is_no_limit() {
        let f = Fixture::new("v2-max");
        f.file("proc/self/cgroup", "0::/a\n").file("proc/self/mountinfo", V2_MOUNT).v2(
            "sys/fs/cgroup/a",
            "max",
            "max",
            5 * MIB,
            0,
        );
        assert_eq!(f.budget().group, None);
    }

    #[test]
    fn v2_in_a_namespace_reads_the_mount_point() {
        let f = Fixture::new("v2-namespace");
        f.file("proc/self/cgroup", "0::/\n").file("proc/self/mountinfo", V2_MOUNT).v2(
            "sys/fs/cgroup",
            "134217728",
            "max",
            28 * MIB,
            0,
        );
        let group = f.group();
        assert_eq!(group.directory, Path::new("/sys/fs/cgroup"));
        assert_eq!(group.available_bytes, 100 * MIB);
    }

    #[test]
    fn paths_outside_of_the_namespace_fall_back_to_the_mount_point() {
        for (own, mount_root) in [("/../sibling", "/"), ("/", "/../.."), ("/a/b", "/other")] {
            let f = Fixture::new("outside");
            f.file("proc/self/cgroup", &format!("0::{own}\n"))
                .file(
                    "proc/self/mountinfo",
                    &V2_MOUNT.replacen("0:26 /", &format!("0:26 {mount_root}"), 1),
                )
                .v2("sys/fs/sibling", "1", "1", 0, 0)
                .v2("sys/fs/cgroup", "67108864", "max", 0, 0);
            let group = f.group();
            assert_eq!(group.directory, Path::new("/sys/fs/cgroup"), "{own} {mount_root}");
            assert_eq!(group.limit_bytes, 64 * MIB);
        }
    }

    #[test]
    fn a_directory_that_is_gone_leaves_its_parents() {
        let f = Fixture::new("gone");
        f.file("proc/self/cgroup", "0::/a/removed\n").file("proc/self/mountinfo", V2_MOUNT).v2(
            "sys/fs/cgroup/a",
            "67108864",
            "max",
            0,
            0,
        );
        assert_eq!(f.group().directory, Path::new("/sys/fs/cgroup/a"));
    }

    #[test]
    fn mount_points_with_blanks() {
        let f = Fixture::new("blanks");
        f.file("proc/self/cgroup", "0::/a\n")
            .file("proc/self/mountinfo", "30 23 0:26 / /mnt/c\\040group rw - cgroup2 none rw\n")
            .v2("mnt/c group/a", "33554432", "max", 0, 0);
        assert_eq!(f.group().directory, Path::new("/mnt/c group/a"));
        assert_eq!(unescape("a\\134b\\x"), "a\\b\\x");
    }

    #[test]
    fn more_used_than_allowed_leaves_nothing() {
        let f = Fixture::new("over");
        f.file("proc/self/cgroup", "0::/a\n").file("proc/self/mountinfo", V2_MOUNT).v2(
            "sys/fs/cgroup/a",
            "33554432",
            "max",
            40 * MIB,
            0,
        );
        assert_eq!(f.group().available_bytes, 0);
        assert_eq!(f.budget().default_memory_bytes(), 0);
    }

    #[test]
    fn a_limit_above_the_machine_is_the_machine() {
        let f = Fixture::new("huge");
        f.file("proc/self/cgroup", "0::/a\n").file("proc/self/mountinfo", V2_MOUNT).v2(
            "sys/fs/cgroup/a",
            "1099511627776",
            "max",
            0,
            0,
        );
        assert_eq!(f.budget().whole_bytes(), 8192 * MIB);
        assert_eq!(f.budget().available_bytes(), 4096 * MIB);
    }

    #[test]
    fn no_cgroups_at_all() {
        let f = Fixture::new("none");
        assert_eq!(f.budget().group, None);
        let broken = Fixture::new("no-meminfo");
        fs::remove_file(broken.0.join("proc/meminfo")).unwrap();
        assert!(Budget::read_below(&broken.0).unwrap_err().contains("/proc/meminfo"));
    }
}
