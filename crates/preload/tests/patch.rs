//! Interception, tested on real programs: a preload library whose hook passes every call through
//! (the example `passthrough`) must leave no trace in what they do, and the programs in
//! `patch_programs/` look for traces.
//!
//! Each program runs natively and then under the library: calls made inside the hook (which has
//! saved all vectors, or few) or by the program's own instruction, the hook scribbling over every
//! vector register, patch tables fresh and from the cache.

mod support;

use std::path::PathBuf;
use std::process::Command;

use support::{Mode, compile, library, run, scratch, under_hook};

/// Runs a command natively and in every way under the library; all must agree.
fn same_with_hook(command: &[&str]) {
    let mut native = Command::new(command[0]);
    let native = run(native.args(&command[1..]));
    assert!(native.status.success(), "natively: {command:?} {native:?}");
    let cache = scratch().join("cache");
    for mode in [Mode::Return, Mode::Inline, Mode::Light] {
        for cache in [None, Some(cache.as_path())].into_iter().skip((mode != Mode::Return) as usize)
        {
            let hooked = run(&mut under_hook(mode, cache, None, command));
            let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
            assert_eq!(
                (hooked.status, text(&hooked.stdout), text(&hooked.stderr)),
                (native.status, text(&native.stdout), text(&native.stderr)),
                "{mode:?} cache {cache:?} {command:?}"
            );
        }
    }
}

fn own_program(name: &str, output: &str, options: &[&str]) {
    let program = compile(name, output, options);
    same_with_hook(&[program.to_str().unwrap()]);
}

#[test]
fn all_registers_and_the_red_zone_survive() {
    own_program("registers.c", "registers", &[]);
    own_program("registers.c", "registers-fixed", &["-no-pie"]);
    // Vectors are saved as on machines without xsavec, and without xsave.
    let program = scratch().join("registers");
    for (method, only) in [("1", None), ("0", Some("SSE_ONLY"))] {
        let mut c = under_hook(Mode::Return, None, None, &[program.to_str().unwrap()]);
        let out = run(c.env("UZ_PASSTHROUGH_SAVE", method).envs(only.map(|o| (o, "1"))));
        assert!(
            out.status.success() && out.stdout.ends_with(b"registers ok\n"),
            "{method}: {out:?}"
        );
    }
}

#[test]
fn every_form_of_replacement_works_far_and_near() {
    own_program("forms.c", "forms", &[]);
    own_program("forms.c", "forms-fixed", &["-no-pie"]);
    let lib =
        compile("forms.c", "libforms.so", &["-shared", "-fPIC", "-DNEAR", "-Dmain=forms_main"]);
    let main = scratch().join("forms-near.c");
    std::fs::write(&main, "int forms_main(void); int main(void) { return forms_main(); }").unwrap();
    let out = scratch().join("forms-near");
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(&out).arg(main).arg(&lib).arg("-Wl,-rpath").arg(scratch());
    assert!(cc.status().unwrap().success());
    same_with_hook(&[out.to_str().unwrap()]);
}

#[test]
fn threads_start_as_they_should() {
    own_program("threads.c", "threads", &[]);
}

#[test]
fn cancellation_runs_every_cleanup() {
    own_program("cancel.cc", "cancel", &[]);
    own_program("cancel_async.c", "cancel-async", &["-fno-exceptions"]);
}

#[test]
fn the_caller_is_found_from_every_instruction() {
    own_program("unwind.c", "unwind", &[]);
    own_program("unwind.c", "unwind-fixed", &["-no-pie"]);
}

#[test]
fn children_of_all_kinds_run() {
    own_program("children.c", "children", &[]);
}

#[test]
fn signals_find_their_handlers() {
    own_program("signals.c", "signals", &[]);
}

#[test]
fn libraries_that_come_later_are_hooked() {
    let plain = compile("late.c", "liblate.so", &["-shared", "-fPIC"]);
    // A library with one segment from offset 0 for headers and code, and without a fingerprint,
    // takes other ways through the loader and the cache.
    let old = ["-shared", "-fPIC", "-Wl,-z,noseparate-code", "-Wl,--build-id=none"];
    let old = compile("late.c", "liblate-old.so", &old);
    let program = compile("loaded.c", "loaded", &["-ldl"]);
    same_with_hook(&[program.to_str().unwrap(), plain.to_str().unwrap(), old.to_str().unwrap()]);
}

/// Programs of this machine, if they are there.
fn if_installed(command: &[&str]) {
    let there =
        Command::new("sh").args(["-c", "command -v \"$1\" >/dev/null", "sh", command[0]]).status();
    if there.unwrap().success() {
        same_with_hook(command);
    } else {
        eprintln!("{} is not installed: skipped", command[0]);
    }
}

#[test]
fn shells_and_tools_run_the_same() {
    let script = "for i in 1 2 3; do echo $(echo $i | cat); done; (exit 3); echo $?; trap 'echo \
                  trapped' USR1; kill -USR1 $$; sleep 0.05 & wait; ls / | sort | head -3; echo a b \
                  | tr a-z A-Z > /dev/stdout";
    if_installed(&["bash", "-c", script]);
    if_installed(&["sh", "-c", script]);
    if_installed(&[
        "perl",
        "-e",
        "print join(',', map { $_ * 2 } 1 .. 9), `echo sub`; fork or exit 3; wait; print $? >> 8",
    ]);
}

#[test]
fn python_runs_the_same() {
    let script = scratch().join("t.py");
    std::fs::write(
        &script,
        r#"
import threading, subprocess, os, time, multiprocessing, signal
def work():
    for _ in range(100):
        os.getppid(); open("/dev/null", "w").write("x")
if __name__ == "__main__":
    threads = [threading.Thread(target=work) for _ in range(20)]
    [t.start() for t in threads]; [t.join() for t in threads]
    print(subprocess.check_output(["echo", "hi"]), subprocess.run("exit 5", shell=True).returncode)
    pid = os.fork()
    if pid == 0: os._exit(7)
    print(os.waitpid(pid, 0)[1] >> 8)
    with multiprocessing.Pool(3) as pool: print(pool.map(abs, [-1, -2, 3]))
    ticks = [0]
    def tick(*_): ticks[0] += 1
    signal.signal(signal.SIGALRM, tick); signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    while ticks[0] < 100: open("/dev/null").read()
    signal.setitimer(signal.ITIMER_REAL, 0)
    print("done")
"#,
    )
    .unwrap();
    if_installed(&["python3", script.to_str().unwrap()]);
}

#[test]
fn node_and_java_run_the_same() {
    let script = "const { execSync } = require('child_process'); \
                  console.log(execSync('echo x').toString()); \
                  const { Worker } = require('worker_threads'); \
                  new Worker('console.log(1 + 1)', { eval: true }).on('exit', () => setTimeout(() \
                  => require('fs').readFile('/etc/hostname', (e, d) => \
                  console.log(d.toString())), 5));";
    if_installed(&["node", "-e", script]);
    let java = scratch().join("H.java");
    std::fs::write(
        &java,
        r#"public class H { public static void main(String[] a) throws Exception {
            Thread[] t = new Thread[8];
            for (int i = 0; i < 8; i++) { t[i] = new Thread(() -> {
                byte[][] b = new byte[100][];
                for (int j = 0; j < 1000; j++) b[j % 100] = new byte[10000];
            }); t[i].start(); }
            for (Thread x : t) x.join();
            System.gc();
            Process echo = new ProcessBuilder("echo", "sub").start();
            System.out.println(new String(echo.getInputStream().readAllBytes()));
        } }"#,
    )
    .unwrap();
    if_installed(&["java", java.to_str().unwrap()]);
}

#[test]
fn a_compiler_runs_the_same() {
    let source = scratch().join("g.cc");
    std::fs::write(
        &source,
        "#include <iostream>\nint main() { try { throw 5; } catch (int x) { std::cout << x; } }\n",
    )
    .unwrap();
    let out = scratch().join("g.out");
    if_installed(&["g++", "-O1", "-o", out.to_str().unwrap(), source.to_str().unwrap()]);
    same_with_hook(&[out.to_str().unwrap()]);
}

/// Where the kernel forbids execution of pages that were written, programs run as they are.
#[test]
fn a_kernel_that_forbids_new_code_is_respected() {
    let program = compile("forbid.c", "forbid", &[]);
    let log = scratch().join("log-forbid");
    let _ = std::fs::remove_file(&log);
    let library = library().to_str().unwrap();
    let out = run(Command::new(program)
        .args([library, "sh", "-c", "echo $((6 * 7))"])
        .env("UZ_PASSTHROUGH_LOG", &log));
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    if out.status.code() == Some(77) {
        eprintln!("this kernel has no PR_SET_MDWE: skipped");
        return;
    }
    assert!(out.status.success() && said == "42\n", "{out:?}");
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains(" patched 0 "), "{text}");
}

/// Everything in libc, the loader and the vDSO is patched on this machine, or the test names the
/// rest.
#[test]
fn nothing_is_left_out_and_the_cache_agrees() {
    let cache = scratch().join("cache-fresh");
    let _ = std::fs::remove_dir_all(&cache);
    let log = scratch().join("log");
    let mut starts = Vec::new();
    for _ in 0..2 {
        let _ = std::fs::remove_file(&log);
        assert!(
            run(&mut under_hook(Mode::Return, Some(&cache), Some(&log), &["/bin/true"]))
                .status
                .success()
        );
        let text = std::fs::read_to_string(&log).unwrap();
        let counts: Vec<String> =
            text.lines().filter(|l| l.starts_with("object")).map(str::to_owned).collect();
        assert!(text.contains("unpatched 0 "), "{text}");
        assert!(
            counts.iter().any(|l| l.contains("libc"))
                && counts.iter().any(|l| l.contains("[vdso]")),
            "{text}"
        );
        starts.push(counts);
    }
    assert_eq!(starts[0], starts[1]);
    let listed = || std::fs::read_dir(&cache).unwrap().map(|e| e.unwrap().path());
    let is_table = |p: &PathBuf| p.extension().is_none();
    let tables: Vec<_> = listed().filter(is_table).collect();
    assert!(tables.len() >= 3, "{tables:?}");
    // Without its shared text an object's table is read in full.
    let start_without_texts = || {
        listed().filter(|p| !is_table(p)).for_each(|p| std::fs::remove_file(p).unwrap());
        assert!(
            run(&mut under_hook(Mode::Return, Some(&cache), None, &["/bin/true"])).status.success()
        );
    };

    // Tables that cannot be trusted are made anew: damaged, then writable by others.
    let table = tables.iter().max_by_key(|t| std::fs::metadata(t).unwrap().len()).unwrap();
    let good = std::fs::read(table).unwrap();
    for at in [0, 5, 9, 20, 30, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        std::fs::write(table, &bad).unwrap();
        start_without_texts();
        assert!(std::fs::read(table).unwrap() == good, "byte {at}");
    }
    std::fs::write(table, &good[..good.len() / 2]).unwrap();
    start_without_texts();
    assert!(std::fs::read(table).unwrap() == good);
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(table, PermissionsExt::from_mode(0o666)).unwrap();
    start_without_texts();
    assert_eq!(std::fs::metadata(table).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(&cache, PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::remove_file(table).unwrap();
    start_without_texts();
    assert!(!table.exists(), "a directory that others can write is not used");
}
