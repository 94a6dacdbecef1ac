//! The harness tested on itself: a measure that cannot fail measures nothing.

use std::process::ExitCode;
use std::sync::Arc;

use uzswap_tests::{Group, Job, MIB, Sandbox, Suite, User, Verdict, Workshop, junit};

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();

    let w = workshop.clone();
    suite.add("group_kills_what_exceeds_it_and_spares_what_fits", move || {
        let touch = w.program("touch");
        let run = |mib: &str| {
            Job::new([touch.as_os_str(), mib.as_ref(), "2".as_ref()]).limit(64 * MIB).run(&w)
        };
        let (fits, exceeds) = (run("40")?, run("100")?);
        let ok = fits.succeeded() && !exceeds.succeeded() && exceeds.oom_kills > 0;
        Ok(Verdict::check(ok, || format!("fits: {}exceeds: {}", fits.report(), exceeds.report())))
    });

    let w = workshop.clone();
    suite.add("watch_sees_the_memory_of_a_program", move || {
        let touch = w.program("touch");
        // Twenty rounds last about two seconds: of one, a watch that finds no processor for 50 ms
        // never sees the whole.
        let run =
            Job::new([touch.as_os_str(), "100".as_ref(), "1".as_ref(), "20".as_ref()]).run(&w)?;
        let seen = [run.peaks.process_bytes, run.peaks.tree_bytes, run.peaks.group_bytes];
        let near = |bytes: u64| (99 * MIB..110 * MIB).contains(&bytes);
        Ok(Verdict::check(run.succeeded() && seen.into_iter().all(near), || run.report()))
    });

    let w = workshop.clone();
    suite.add("watch_sums_a_tree", move || {
        let touch = w.program("touch");
        let both = format!("{0} 50 1 20 & {0} 50 1 20 && wait", touch.display());
        let run = Job::new(["sh", "-c", &both]).run(&w)?;
        let ok = run.succeeded() && run.peaks.tree_bytes > run.peaks.process_bytes;
        Ok(Verdict::check(ok, || run.report()))
    });

    for user in [User::Root, User::Ordinary] {
        let w = workshop.clone();
        suite.add(format!("jail_changes_the_user::{}", user.name()), move || {
            let run = Job::new(["sh", "-c", "id -u; id -G; touch mine"]).user(user).run(&w)?;
            let expected = match user {
                User::Root => "0\n0\n",
                User::Ordinary => "12345\n12345\n",
            };
            Ok(Verdict::check(run.succeeded() && run.stdout == expected, || run.report()))
        });
        for sandbox in [Sandbox::Open, Sandbox::NoUserfaultfd] {
            let w = workshop.clone();
            suite.add(
                format!("jail_refuses_userfaultfd::{}::{}", user.name(), sandbox.mechanism()),
                move || {
                    // userfaultfd(UFFD_USER_MODE_ONLY) is system call 323 on x86-64.
                    let probe = "print syscall(323, 1) >= 0 ? 'given' : 'refused'";
                    let run =
                        Job::new(["perl", "-e", probe]).user(user).sandbox(sandbox).run(&w)?;
                    let expected = if sandbox == Sandbox::Open { "given" } else { "refused" };
                    Ok(Verdict::check(run.succeeded() && run.stdout == expected, || run.report()))
                },
            );
        }
    }

    let w = workshop.clone();
    suite.add("nothing_outlives_a_job", move || {
        let run =
            Job::new(["sh", "-c", "setsid sleep 1000 & setsid sleep 1000 & echo $!"]).run(&w)?;
        let left = run.stdout.trim().to_owned();
        // Dead is enough: whoever adopted it may take its time to reap it.
        let status = std::fs::read_to_string(format!("/proc/{left}/status")).unwrap_or_default();
        let gone =
            status.is_empty() || status.contains("State:\tZ") || status.contains("State:\tX");
        Ok(Verdict::check(run.succeeded() && !left.is_empty() && gone, || run.report()))
    });

    let w = workshop.clone();
    suite.add("a_hanging_job_is_ended_and_described", move || {
        // Until then it has begun, also where starting takes long.
        let wait = std::time::Duration::from_secs(3);
        let run = Job::new(["sh", "-c", "trap '' TERM; sleep 1000"]).hangs_after(wait).run(&w)?;
        let described = run.hung.as_deref().unwrap_or("").contains("sleep 1000");
        Ok(Verdict::check(!run.succeeded() && described, || run.report()))
    });

    suite.add("group_is_gone_when_dropped", || {
        let group = Group::new(Some(64 * MIB))?;
        let dir = group.procs_file().parent().expect("a directory").to_owned();
        let there = dir.exists();
        drop(group);
        Ok(Verdict::check(there && !dir.exists(), || format!("{} stays", dir.display())))
    });

    let w = workshop.clone();
    suite.add("junit_differences_are_found", move || {
        let write = |name: &str, body: &str| {
            let path = w.dir().join(name);
            std::fs::write(
                &path,
                format!(
                    "<testsuites><testsuite>{body}</testsuite>\
                     </testsuites>"
                ),
            )
            .unwrap();
            junit::read(&path).expect("a report")
        };
        let expected = write(
            "a.xml",
            "<testcase classname='c' name='a'/><testcase classname='c' name='b'><skipped/>\
             </testcase><testcase classname='c' name='gone'/>",
        );
        let got = write(
            "b.xml",
            "<testcase classname='c' name='a'><failure/></testcase>\
             <testcase classname='c' name='b'><skipped/></testcase>",
        );
        let found = junit::differences(&expected, &got);
        let wanted = ["c.a: passed -> failure", "c.gone: passed -> absent"];
        Ok(Verdict::check(found == wanted && junit::differences(&got, &got).is_empty(), || {
            format!("{found:?}")
        }))
    });

    suite.main()
}
