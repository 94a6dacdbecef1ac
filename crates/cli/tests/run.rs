//! `uzswap run` with good and bad input: exit codes, messages, what the program inherits.

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use common::system::{is_root, with_ignored, with_limit, without_userfaultfd};
use common::*;

// ---------------------------------------------------------------- as without uzswap

#[test]
fn the_exit_code_is_the_programs() {
    for code in [0, 1, 3, 42, 126, 127, 255] {
        let output = run(["--quiet", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!(output.status.code(), Some(code));
        assert_eq!(stderr(&output), "");
    }
}

#[test]
fn options_of_the_program_are_its_own() {
    let output = run(["--quiet", "echo", "--memory", "-h", "--", "--bogus", ""]);
    assert_eq!(stdout(&output), "--memory -h -- --bogus \n");
    let output = run(["--quiet", "--memory", "1G", "--", "printf", "%s|", "--version", "-x"]);
    assert_eq!(stdout(&output), "--version|-x|");
}

#[test]
fn streams_pass_through() {
    let mut child = uzswap()
        .args(["run", "--quiet", "--", "sh", "-c", "cat; echo error >&2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let input = vec![b'x'; 1 << 20];
    let mut stdin = child.stdin.take().unwrap();
    let copy = input.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&copy).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!(output.stdout, input);
    assert_eq!(stderr(&output), "error\n");
}

/// A program must see the same surroundings with and without uzswap. `given` is shell text that
/// prepares them.
#[track_caller]
fn same_as_without(given: &str, program: &str) -> String {
    let shell = |prefix: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{given}exec {prefix} {program}")]);
        let output =
            command.env("UZSWAP_PRELOAD", LIBRARY).env("UZSWAP_QUIET", "1").output().unwrap();
        assert!(output.status.success(), "{given}{prefix}: {}", stderr(&output));
        stdout(&output)
    };
    let without = shell("");
    assert_eq!(
        shell(&format!("{} run --", env!("CARGO_BIN_EXE_uzswap"))),
        without,
        "after: {given}"
    );
    without
}

#[test]
fn ignored_and_blocked_signals_are_inherited() {
    // nohup ignores HUP; the standard library of this command would change PIPE; CHLD decides about
    // zombies. (What is caught is not compared: the runtime does catch a signal more.) No shell in
    // between: it would change CHLD.
    let show = ["-E", "^Sig(Ign|Blk)", "/proc/self/status"];
    let seen = |ignored: &[i32]| {
        let without = with_ignored(Command::new("grep").args(show), ignored).output().unwrap();
        let mut command = uzswap();
        command.args(["run", "--quiet", "--", "grep"]).args(show);
        let with = with_ignored(&mut command, ignored).output().unwrap();
        assert_eq!(stdout(&with), stdout(&without), "ignoring {ignored:?}");
        stdout(&with)
    };
    let plain = seen(&[]);
    for signal in
        [libc::SIGHUP, libc::SIGPIPE, libc::SIGCHLD, libc::SIGINT, libc::SIGTSTP, libc::SIGUSR1, 40]
    {
        assert_ne!(
            seen(&[signal]),
            plain,
            "signal {signal} was not ignored, so this shows nothing"
        );
    }
}

#[test]
fn an_ignored_child_signal_does_not_lose_the_exit_code() {
    let mut command = uzswap();
    command.args(["run", "--quiet", "--", "sh", "-c", "exit 7"]);
    let output = with_ignored(&mut command, &[libc::SIGCHLD]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
}

#[test]
fn closed_descriptors_stay_closed() {
    for closed in ["0<&- ", "0<&- 2>&- ", "2>&- "] {
        let listing = same_as_without(
            &format!("exec {closed}; "),
            "sh -c 'for i in 0 1 2; do [ -e /proc/self/fd/$i ] && echo $i; done; true'",
        );
        assert!(listing.contains('1'));
        assert_ne!(listing, "0\n1\n2\n");
    }
}

#[test]
fn limits_directory_mask_and_group_are_inherited() {
    same_as_without("cd /; umask 027; ulimit -c 0; ", "sh -c 'pwd; umask; ulimit -c; ulimit -n'");
    // Field 5 is the process group: the same as the one of the shell that started it all.
    let output = Command::new("sh")
        .args([
            "-c",
            "cut -d' ' -f5 /proc/self/stat; $UZSWAP run --quiet -- cut -d' ' -f5 /proc/self/stat; \
             :",
        ])
        .env("UZSWAP", env!("CARGO_BIN_EXE_uzswap"))
        .env("UZSWAP_PRELOAD", LIBRARY)
        .output()
        .unwrap();
    let text = stdout(&output);
    let groups: Vec<&str> = text.lines().collect();
    assert_eq!(groups.len(), 2, "{}", stderr(&output));
    assert_eq!(groups[0], groups[1]);
}

#[test]
fn the_runtime_is_told_by_two_variables() {
    let harmless = harmless_library();
    let real = fs::canonicalize(&harmless).unwrap();
    let show = [
        "run",
        "--quiet",
        "--",
        "sh",
        "-c",
        "echo $LD_PRELOAD; echo $UZSWAP_CONTROL_FD; readlink /proc/self/fd/700 /proc/self/fd/701",
    ];
    let output = uzswap().args(show).env("UZSWAP_PRELOAD", &harmless).output().unwrap();
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], real.to_str().unwrap());
    let numbers: Vec<&str> = lines[1].split(':').collect();
    assert!(numbers.len() == 4 && numbers[0] == "700" && numbers[2] == "701", "{text}");
    assert!(lines[2].contains("uzswap-control") && lines[3].contains("uzswap-settings"), "{text}");
    let other = "/lib64/ld-linux-x86-64.so.2";
    let output = uzswap()
        .args(show)
        .env("UZSWAP_PRELOAD", &harmless)
        .env("LD_PRELOAD", other)
        .env("UZSWAP_CONTROL_FD", "5")
        .output()
        .unwrap();
    assert!(
        stdout(&output).starts_with(&format!("{}:{other}\n", real.display())),
        "{}",
        stdout(&output)
    );
    assert!(stdout(&output).contains("\n700:"));
}

#[test]
fn a_small_table_of_descriptors_is_enough() {
    let mut command = uzswap();
    command.args(["run", "--quiet", "--", "sh", "-c", "exit 4"]);
    let output = with_limit(&mut command, libc::RLIMIT_NOFILE, 40).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
}

#[test]
fn where_files_must_be_small_that_is_said() {
    // A process that writes beyond this limit is not only refused: the kernel kills it.
    let limited = |options: &[&str]| {
        let mut command = uzswap();
        command.args(["run", "--quiet"]).args(options).args(["--", "sh", "-c", "exit 4"]);
        with_limit(&mut command, libc::RLIMIT_FSIZE, 0).output().unwrap()
    };
    assert_refused(&limited(&[]), 2, &["(ulimit -f)", "--if-possible"]);
    assert_refused(&limited(&["--store", "/tmp"]), 2, &["--store: /tmp: ", "(ulimit -f)"]);
    assert_eq!(limited(&["--if-possible"]).status.code(), Some(4));
}

#[test]
fn uzswap_itself_is_small() {
    // Its memory counts against the same limit as the program's.
    let output = run(["--quiet", "--", "sh", "-c", "grep RssAnon /proc/$PPID/status"]);
    let text = stdout(&output);
    let kib: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kib <= 1024, "{text}");
}

// ---------------------------------------------------------------- programs

#[test]
fn a_program_that_is_not_there_is_127() {
    let scratch = Scratch::new();
    assert_refused(
        &run(["--", "no-such-program-anywhere"]),
        127,
        &["no-such-program-anywhere", "PATH"],
    );
    assert_refused(&run(["--", "/no/such/program"]), 127, &["/no/such/program", "no such file"]);
    assert_refused(&run(["--", "/etc/passwd/x"]), 127, &["not a directory"]);
    assert_refused(&run(["--", ""]), 127, &["empty"]);
    let script = scratch.file("script", "#!/no/such/interpreter -x\n", 0o755);
    assert_refused(&run([&script]), 127, &["script", "/no/such/interpreter", "no such file"]);
    let output = uzswap().args(["run", "true"]).env("PATH", "/no/such/directory").output().unwrap();
    assert_refused(&output, 127, &["true"]);
}

#[test]
fn a_file_that_is_no_program_is_126() {
    let scratch = Scratch::new();
    let data = scratch.file("data", "hello", 0o644);
    assert_refused(&run([&data]), 126, &["data", "permission denied"]);
    assert_refused(&run([scratch.directory()]), 126, &["is a directory"]);
    let broken = scratch.file("broken", b"\x7fELF\x02\x01\x01", 0o755);
    assert_refused(&run([&broken]), 126, &["broken", "damaged ELF"]);
    // In PATH a file that may not be executed is passed over, and named if nothing else is found.
    let path = format!("{}:/usr/bin:/bin", scratch.directory().display());
    scratch.file("true", "", 0o644);
    let output = uzswap().args(["run", "--quiet", "true"]).env("PATH", &path).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = uzswap().args(["run", "data"]).env("PATH", &path).output().unwrap();
    assert_refused(&output, 126, &["data", "permission denied"]);
}

#[test]
fn scripts_run_by_their_interpreter_or_by_the_shell() {
    let scratch = Scratch::new();
    let with_line = scratch.file("with-line", "#! /bin/sh -e\necho \"$0 $1\"; exit 5\n", 0o755);
    let output = run(["--quiet", with_line.to_str().unwrap(), "argument"]);
    assert_eq!(stdout(&output), format!("{} argument\n", with_line.display()));
    assert_eq!(output.status.code(), Some(5));
    let without = scratch.file("without", "echo \"$0 $1\"; exit 6\n", 0o755);
    let output = run(["--quiet", without.to_str().unwrap(), "argument"]);
    assert_eq!(stdout(&output), format!("{} argument\n", without.display()));
    assert_eq!(output.status.code(), Some(6));
    let empty = scratch.file("empty", "", 0o755);
    assert_eq!(run(["--quiet", empty.to_str().unwrap()]).status.code(), Some(0));
}

#[test]
fn programs_that_cannot_be_taken_over_are_refused_or_run_unmanaged() {
    let scratch = Scratch::new();
    let remedy = "--if-possible";
    let narrow = scratch.file("narrow", narrow_program(), 0o755);
    assert_refused(&run([&narrow]), 2, &["32-bit x86", "x86-64 build", remedy]);
    // A kernel may be built without such programs.
    if let Ok(alone) = Command::new(&narrow).status() {
        let output = run(["--if-possible", "--", narrow.to_str().unwrap()]);
        assert_eq!((alone.code(), output.status.code()), (Some(42), Some(42)));
        assert!(
            stderr(&output).contains("runs unmanaged") && stderr(&output).contains("32-bit x86")
        );
        let output = run(["--if-possible", "--quiet", "--", narrow.to_str().unwrap()]);
        assert_eq!((output.status.code(), stderr(&output)), (Some(42), String::new()));
    } else {
        println!("SKIPPED: this kernel does not execute 32-bit programs");
    }
    let script = scratch.file("script", format!("#!{}\n", narrow.display()), 0o755);
    assert_refused(&run([&script]), 2, &["narrow", "32-bit x86"]);
    let mut foreign = static_program();
    foreign[18] = 183;
    let foreign = scratch.file("foreign", foreign, 0o755);
    assert_refused(&run([&foreign]), 2, &["another processor", remedy]);
    let noise = scratch.file("noise", b"\x01\x02\0\x03", 0o755);
    assert_refused(&run([&noise]), 2, &["neither an ELF file nor a script"]);
}

#[test]
fn setuid_programs_are_refused() {
    let scratch = Scratch::new();
    let program = if is_root() {
        // For root a setuid-root program gains nothing; one of another user does.
        let copy = scratch.path("setuid");
        fs::copy("/bin/true", &copy).unwrap();
        std::os::unix::fs::chown(&copy, Some(65534), None).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).unwrap();
        copy
    } else {
        "/usr/bin/su".into()
    };
    assert_refused(&run([&program]), 2, &["setuid", "--if-possible"]);
}

#[test]
fn where_userfaultfd_is_refused_protection_faults_do() {
    let refused = |arguments: &[&str]| {
        let mut command = uzswap();
        without_userfaultfd(command.arg("run").args(arguments)).output().unwrap()
    };
    let output = refused(&["--quiet", "--", "sh", "-c", "exit 3"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let output = refused(&["--quiet", "--mechanism", "protect", "--", "sh", "-c", "exit 3"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    for mechanism in ["userfaultfd", "userfaultfd-copy"] {
        let output = refused(&["--mechanism", mechanism, "--", "true"]);
        assert_refused(&output, 2, &["seccomp", "userfaultfd", "--if-possible"]);
    }
}

// ---------------------------------------------------------------- options

#[test]
fn wrong_options_are_one_line_each() {
    for (arguments, words) in [
        (&["--bogus", "true"][..], &["--bogus"][..]),
        (&["-x", "true"], &["-x"]),
        (&[], &["PROGRAM"]),
        (&["--"], &["PROGRAM"]),
        (&["--memory"], &["--memory", "value"]),
        (&["--quiet=maybe", "true"], &["--quiet"]),
        (&["--memory", "lots", "--", "true"], &["--memory", "'lots'", "512M"]),
        (&["--memory", "", "--", "true"], &["--memory", "empty"]),
        (&["--memory", "-1G", "--", "true"], &["--memory", "negative"]),
        (&["--memory", "99999999999999999999", "--", "true"], &["--memory", "too large"]),
        (&["--memory", "9999999P", "--", "true"], &["--memory", "too large"]),
        (&["--memory", "101%", "--", "true"], &["--memory", "percentage"]),
        (&["--memory", "15.9M", "--", "true"], &["--memory", "'15.9M'", "16 MiB", "least"]),
        (&["--memory", "0", "--", "true"], &["--memory", "16 MiB", "least"]),
        (&["--memory", "0.001%", "--", "true"], &["--memory", "0.001%", "least"]),
        (&["--pool-percent", "0", "--", "true"], &["--pool-percent", "1 to 90"]),
        (&["--pool-percent", "many", "--", "true"], &["--pool-percent", "'many'"]),
        (&["--mechanism", "magic", "--", "true"], &["--mechanism", "'magic'", "protect"]),
        (&["--compressor", "", "--", "true"], &["--compressor"]),
        (&["--compressor", "gzip", "--", "true"], &["--compressor", "'gzip'", "lz4", "zstd"]),
        (&["--compressor", "zstd:level=99", "--", "true"], &["--compressor", "99"]),
        (
            &["--stats", "/no/such/directory/file", "--", "true"],
            &["--stats", "directory does not exist"],
        ),
        (&["--stats", "/", "--", "true"], &["--stats", "is a directory"]),
        (
            &["--store", "/no/such/directory", "--", "true"],
            &["--store", "/no/such/directory", "no such directory"],
        ),
        (&["--store", "/etc/passwd", "--", "true"], &["--store", "not a directory"]),
        (&["--store", "/proc", "--", "true"], &["--store", "/proc"]),
        (&["--cache", "/proc/uzswap", "--", "true"], &["--cache", "/proc/uzswap"]),
    ] {
        let output = run(arguments);
        let joined = format!("{arguments:?}");
        assert_refused(&output, 2, words);
        assert!(!stderr(&output).contains("panicked"), "{joined}");
    }
}

#[test]
fn wrong_variables_are_named() {
    for (variable, value, words) in [
        ("UZSWAP_MEMORY", "lots", &["UZSWAP_MEMORY", "'lots'"][..]),
        ("UZSWAP_MEMORY", "1M", &["UZSWAP_MEMORY", "1.0 MiB", "least", "16 MiB"]),
        ("UZSWAP_POOL_PERCENT", "91", &["UZSWAP_POOL_PERCENT", "1 to 90"]),
        ("UZSWAP_MECHANISM", "x", &["UZSWAP_MECHANISM"]),
        ("UZSWAP_STORE", "/no/such/directory", &["UZSWAP_STORE"]),
        ("UZSWAP_STATS", "/no/such/directory/x", &["UZSWAP_STATS"]),
        ("UZSWAP_QUIET", "maybe", &["UZSWAP_QUIET"]),
        ("UZSWAP_PRELOAD", "/no/such/library.so", &["UZSWAP_PRELOAD", "no such file"]),
        ("UZSWAP_PRELOAD", "/", &["UZSWAP_PRELOAD", "not a file"]),
    ] {
        assert_refused(
            &uzswap().args(["run", "true"]).env(variable, value).output().unwrap(),
            2,
            words,
        );
    }
    // An empty variable is none, and the command line wins.
    let output = uzswap()
        .args(["run", "--quiet", "--memory", "1G", "true"])
        .env("UZSWAP_MEMORY", "lots")
        .env("UZSWAP_STORE", "")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn commands_and_help() {
    let plain = |arguments: &[&str]| uzswap().args(arguments).output().unwrap();
    assert_refused(&plain(&[]), 2, &["run", "doctor"]);
    assert_refused(&plain(&["fly"]), 2, &["fly"]);
    assert_refused(&plain(&["help", "flying"]), 2, &["flying"]);
    for arguments in [&["--help"][..], &["help"], &["-h"]] {
        let output = plain(arguments);
        assert!(output.status.success() && stdout(&output).contains("doctor"), "{arguments:?}");
    }
    for arguments in [&["run", "--help"][..], &["help", "run"]] {
        let text = stdout(&plain(arguments));
        for word in [
            "--memory <SIZE|PERCENT>",
            "UZSWAP_MEMORY",
            "at least 16M",
            "--if-possible",
            "--store <DIR|DEVICE|URL,...|none>",
        ] {
            assert!(text.contains(word), "no {word} in {text}");
        }
        assert!(!text.contains("--debug"));
    }
    let text = stdout(&plain(&["help", "stats"]));
    assert!(text.contains("written_back_pages") && text.contains("wall_seconds"), "{text}");
    let text = stdout(&plain(&["help", "compressors"]));
    assert!(text.contains("lz4") && text.contains("zstd:level="), "{text}");
    assert_eq!(stdout(&plain(&["--version"])), format!("uzswap {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_store_that_cannot_be_written() {
    let scratch = Scratch::new();
    let directory = scratch.directory().join("locked");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o555)).unwrap();
    let words = ["--store", "locked", "not writable"];
    if is_root() {
        // Permissions do not stop root: try as somebody else.
        let output = Command::new("setpriv")
            .args([
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                env!("CARGO_BIN_EXE_uzswap"),
                "run",
            ])
            .args(["--store", directory.to_str().unwrap(), "--", "true"])
            .env("UZSWAP_PRELOAD", harmless_library())
            .output();
        match output {
            Ok(output) if output.status.code() != Some(126) => assert_refused(&output, 2, &words),
            _ => eprintln!("skipped: no setpriv, or the build directory is closed to others"),
        }
    } else {
        assert_refused(&run(["--store", directory.to_str().unwrap(), "--", "true"]), 2, &words);
    }
}

#[test]
fn a_store_on_a_full_disk() {
    let scratch = Scratch::new();
    // In a mount namespace of its own: a file system of 16 KiB.
    let inner = format!(
        "mount -t tmpfs -o size=16k none {0} && exec {1} run --store {0} -- true",
        scratch.directory().display(),
        env!("CARGO_BIN_EXE_uzswap")
    );
    let unshare = |script: &str| {
        Command::new("unshare")
            .args(["-rm", "sh", "-c", script])
            .env("UZSWAP_PRELOAD", LIBRARY)
            .output()
    };
    if !unshare("true").is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: this sandbox has no user namespaces");
        return;
    }
    assert_refused(&unshare(&inner).unwrap(), 2, &["--store", "no space left"]);
}

#[test]
fn a_store_in_memory_is_said_and_not_taken_by_default() {
    let output = run(["--store", "/dev/shm", "--", "true"]);
    if output.status.success() {
        assert!(stderr(&output).contains("/dev/shm is a tmpfs"), "{}", stderr(&output));
    }
    let scratch = Scratch::new();
    let stats = scratch.path("stats.json");
    let output = uzswap()
        .args(["run", "--quiet", "--stats", stats.to_str().unwrap(), "true"])
        .env("TMPDIR", "/dev/shm")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let json: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&stats).unwrap()).unwrap();
    assert_ne!(json["settings"]["store"], "/dev/shm");
}

// ---------------------------------------------------------------- reports

#[test]
fn the_summary_is_one_line_and_quiet_is_none() {
    let output = run(["--memory", "100M", "--store", "none", "--", "true"]);
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    assert!(stderr(&output).starts_with("uzswap: "));
    let output = uzswap().args(["run", "true"]).env("UZSWAP_QUIET", "yes").output().unwrap();
    assert_eq!(stderr(&output), "");
}

#[test]
fn statistics_are_json() {
    let scratch = Scratch::new();
    let path = scratch.path("stats.json");
    let stats = |script: &str| -> serde_json::Value {
        let path = path.to_str().unwrap();
        run(["--quiet", "--memory", "64M", "--stats", path, "--", "sh", "-c", script]);
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    };
    let json = stats("exit 3");
    assert_eq!(json["exit_code"], 3);
    assert_eq!(json["signal"], serde_json::Value::Null);
    assert_eq!(json["command"], serde_json::json!(["sh", "-c", "exit 3"]));
    assert_eq!(json["settings"]["memory_bytes"], 64 << 20);
    assert_eq!(json["settings"]["memory_from"], "--memory");
    assert!(json["wall_seconds"].as_f64().unwrap() >= 0.0);
    assert!(json["counters"]["faults"].is_u64());
    // The file of a second run replaces the first.
    let json = stats("kill -KILL $$");
    assert_eq!(json["exit_code"], serde_json::Value::Null);
    assert_eq!(json["signal"], "SIGKILL");
}

#[test]
fn a_percentage_is_one_of_the_limit() {
    let scratch = Scratch::new();
    let bytes = |percent: &str| {
        let path = scratch.path("stats.json");
        run(["--quiet", "--memory", percent, "--stats", path.to_str().unwrap(), "true"]);
        let json: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        json["settings"]["memory_bytes"].as_u64().unwrap()
    };
    let (half, quarter) = (bytes("50%"), bytes("25%"));
    assert!(half >= 16 << 20 && half.abs_diff(2 * quarter) <= 1, "{half} {quarter}");
}

#[test]
fn a_closed_stderr_disturbs_nobody() {
    let output = Command::new("sh")
        .args([
            "-c",
            &format!("exec 2>&-; exec {} run -- sh -c 'exit 9'", env!("CARGO_BIN_EXE_uzswap")),
        ])
        .env("UZSWAP_PRELOAD", LIBRARY)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(9));
    // The first file that we open must not become stderr, and receive the summary.
    let scratch = Scratch::new();
    let stats = scratch.path("stats.json");
    let script = format!(
        "exec 2>&-; exec {} run --stats {} -- sh -c 'exit 9'",
        env!("CARGO_BIN_EXE_uzswap"),
        stats.display()
    );
    let output =
        Command::new("sh").args(["-c", &script]).env("UZSWAP_PRELOAD", LIBRARY).output().unwrap();
    assert_eq!(output.status.code(), Some(9));
    let json: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&stats).unwrap()).unwrap();
    assert_eq!(json["exit_code"], 9);
    // A reader that has gone away must not kill us before we can return the exit code.
    let output = Command::new("sh")
        .args([
            "-c",
            &format!(
                "({{ {} run -- sh -c 'exit 9'; echo $? >&3; }} 2>&1 | true) 3>&1",
                env!("CARGO_BIN_EXE_uzswap")
            ),
        ])
        .env("UZSWAP_PRELOAD", LIBRARY)
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "9\n");
    assert_eq!(output.status.signal(), None);
}
