//! The jobs that fio gets, and the figures that it reports.
//!
//! The phases are those of the line of iozone by which zram is known (`iozone -t 12 -r 16K -s 60M`,
//! all its tests), in its order. iozone goes through a file for each thread, so each of fio's jobs
//! has a part of the disk to itself.

use std::fmt::Write;

use serde_json::Value;

/// Bytes of a request.
pub const REQUEST_BYTES: u64 = 16 << 10;
/// iozone's stride: one request of so many is read.
const STRIDE_REQUESTS: u64 = 17;

/// One way of going through the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Phase {
    pub name: &'static str,
    /// fio's way, `rw=`.
    way: &'static str,
    /// Of a device of the kernel: by a call with an offset, rather than lseek and read or write.
    is_positioned: bool,
    pub writes: bool,
}

const fn phase(name: &'static str, way: &'static str, writes: bool) -> Phase {
    Phase { name, way, is_positioned: false, writes }
}

const STRIDE: &str = "stride read";

/// In the order in which they run: the first one fills the disk.
pub const PHASES: [Phase; 11] = [
    phase("initial write", "write", true),
    phase("rewrite", "write", true),
    phase("read", "read", false),
    phase("re-read", "read", false),
    // fio goes on from the end of a request: two back is one before.
    phase("reverse read", "read:-32k", false),
    phase(STRIDE, "read:256k", false),
    phase("random read", "randread", false),
    phase("mixed", "randrw", true),
    phase("random write", "randwrite", true),
    Phase { name: "pwrite", way: "write", is_positioned: true, writes: true },
    Phase { name: "pread", way: "read", is_positioned: true, writes: false },
];

/// The contents of the blocks that are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Data {
    /// As iozone's line writes: one value everywhere
    Zeros,
    /// Half of each 512 bytes is random, the rest zero
    Half,
    /// Pages of heaps: those of --corpus, or made up
    Heap,
}

impl Data {
    pub fn name(self) -> &'static str {
        match self {
            Data::Zeros => "zeros",
            Data::Half => "half",
            Data::Heap => "heap",
        }
    }

    /// Whether fio can make it: its patterns have 512 bytes at most (version 3.33).
    pub fn is_of_fio(self) -> bool {
        self != Data::Heap
    }
}

/// Where requests go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    Nbd { uri: String },
    Device { path: String },
}

/// All phases that fio does with that data, one after the other, as a job file.
pub fn text(place: &Place, data: Data, writers: u32, bytes_of_each: u64) -> String {
    let mut text = format!(
        "[global]\nbs={REQUEST_BYTES}\nsize={bytes_of_each}\noffset_increment={bytes_of_each}\n\
         numjobs={writers}\nthread\ngroup_reporting\nend_fsync=0\nrandrepeat=1\n"
    );
    text += match data {
        Data::Zeros => "zero_buffers\n",
        Data::Half => "refill_buffers\nbuffer_compress_percentage=50\nbuffer_compress_chunk=512\n",
        Data::Heap => "",
    };
    text += &match place {
        Place::Nbd { uri } => format!("ioengine=nbd\nuri={uri}\n"),
        Place::Device { path } => format!("filename={path}\ndirect=1\n"),
    };
    for phase in PHASES.iter().filter(|phase| data.is_of_fio() || !phase.writes) {
        let _ = write!(text, "[{}]\nstonewall\nrw={}\n", phase.name, phase.way);
        if phase.name == STRIDE {
            // As many requests as in the others.
            text += &format!("loops={STRIDE_REQUESTS}\n");
        }
        if matches!(place, Place::Device { .. }) {
            text += if phase.is_positioned { "ioengine=psync\n" } else { "ioengine=sync\n" };
        }
    }
    text
}

/// MiB/s of each phase, by fio's JSON. Its NBD engine says a line for each connection before.
pub fn parse(said: &str) -> Result<Vec<(String, f64)>, String> {
    let begin = if said.starts_with('{') { Some(0) } else { said.find("\n{").map(|at| at + 1) };
    let text = begin.map(|at| &said[at..]).ok_or("fio said no JSON".to_string())?;
    let json: Value = serde_json::from_str(text).map_err(|e| format!("fio's JSON: {e}"))?;
    let speed = |job: &Value| {
        let name = job["jobname"].as_str().ok_or("fio: a job without a name")?.to_string();
        if job["error"].as_i64() != Some(0) {
            return Err(format!("fio: {name}: error {}", job["error"]));
        }
        let of = |way: &str, key: &str| job[way][key].as_f64().unwrap_or(0.0);
        let bytes = of("read", "io_bytes") + of("write", "io_bytes");
        let ms = of("read", "runtime").max(of("write", "runtime"));
        match bytes > 0.0 && ms > 0.0 {
            true => Ok((name, bytes / f64::from(1 << 20) / (ms / 1e3))),
            false => Err(format!("fio: {name}: nothing was done in any time")),
        }
    };
    let jobs = json["jobs"].as_array().ok_or("fio: no jobs")?;
    jobs.iter().map(speed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sections(text: &str) -> Vec<&str> {
        text.lines().filter_map(|line| line.strip_prefix('[')?.strip_suffix(']')).collect()
    }

    #[test]
    fn a_disk_over_nbd_has_all_phases() {
        let uri = "nbd+unix:///x?socket=/a/b".to_string();
        let text = text(&Place::Nbd { uri }, Data::Half, 12, 60 << 20);
        let names: Vec<&str> = PHASES.iter().map(|phase| phase.name).collect();
        assert_eq!(sections(&text)[1..], names);
        for line in [
            "ioengine=nbd",
            "uri=nbd+unix:///x?socket=/a/b",
            "numjobs=12",
            "size=62914560",
            "offset_increment=62914560",
            "bs=16384",
            "buffer_compress_percentage=50",
            "rw=read:-32k",
            "rw=read:256k",
            "loops=17",
        ] {
            assert!(text.lines().any(|own| own == line), "{line}:\n{text}");
        }
        assert!(!text.contains("zero_buffers") && !text.contains("sync\n"), "{text}");
        assert_eq!(text.matches("stonewall").count(), PHASES.len());
    }

    #[test]
    fn a_device_is_read_past_the_page_cache_and_heaps_only_read() {
        let place = Place::Device { path: "/dev/zram7".to_string() };
        let zeros = text(&place, Data::Zeros, 1, 1 << 20);
        assert!(zeros.contains("filename=/dev/zram7\ndirect=1\n"), "{zeros}");
        assert!(zeros.contains("[pwrite]\nstonewall\nrw=write\nioengine=psync\n"), "{zeros}");
        assert!(zeros.contains("[rewrite]\nstonewall\nrw=write\nioengine=sync\n"), "{zeros}");
        assert!(zeros.contains("zero_buffers\n"));
        let heap = text(&place, Data::Heap, 1, 1 << 20);
        assert!(!heap.contains("write") && !heap.contains("randrw"), "{heap}");
        assert_eq!(sections(&heap).len(), 7, "{heap}");
    }

    #[test]
    fn figures_are_found_behind_what_the_engine_says() {
        let job = |name: &str, error: i32, read: (u64, u64), write: (u64, u64)| {
            let of = |(bytes, ms)| serde_json::json!({"io_bytes": bytes, "runtime": ms, "bw": 1});
            serde_json::json!({
                "jobname": name, "groupid": 0, "error": error, "read": of(read), "write": of(write),
            })
        };
        let said = |jobs: Vec<Value>| {
            format!(
                "fio: connected to NBD server\nfio: connected to NBD server\n{:#}\n",
                serde_json::json!({"fio version": "fio-3.33", "jobs": jobs})
            )
        };
        let read = job("read", 0, (100 << 20, 500), (0, 0));
        let mixed = job("mixed", 0, (30 << 20, 1000), (50 << 20, 990));
        let figures = parse(&said(vec![read.clone(), mixed])).unwrap();
        assert_eq!(figures, [("read".to_string(), 200.0), ("mixed".to_string(), 80.0)]);
        let failed = parse(&said(vec![read, job("rewrite", 28, (0, 0), (1, 1))]));
        assert_eq!(failed.unwrap_err(), "fio: rewrite: error 28");
        let nothing = parse(&said(vec![job("read", 0, (0, 0), (0, 0))]));
        assert!(nothing.unwrap_err().contains("nothing was done"));
        assert_eq!(parse("fio: no such engine").unwrap_err(), "fio said no JSON");
        assert_eq!(parse("{\"jobs\": []}").unwrap(), []);
    }
}
