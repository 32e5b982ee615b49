//! Programs that use no io_uring behave under `usring run` as without it. The tests compare the
//! output, the exit status, files left behind, and the behaviour of children.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use workloads::harness::{self, CC, Finished, MAKE, Run, Stage, World, require};

/// The compared behaviour: exit status, standard output, standard error.
type Behaviour = (ExitStatus, String, String);

fn behaviour(finished: Finished) -> Behaviour {
    (finished.status, finished.stdout, finished.stderr)
}

/// Runs a program with and without usring. Asserts that both runs behave alike, and returns their
/// behaviour.
#[track_caller]
fn alike(prepare: impl Fn(World) -> Run) -> Behaviour {
    let bare = behaviour(prepare(World::Bare).finish());
    let served = behaviour(prepare(World::Transparent).finish());
    assert_eq!(served, bare, "left under usring, right without");
    bare
}

/// Runs a shell line with and without usring. Asserts that both runs behave alike and end with
/// `status`.
#[track_caller]
fn shell_alike(stage: &Stage, shell: &str, line: &str, status: i32) -> Behaviour {
    let behaviour = alike(|world| stage.program(world, shell).args(["-c", line]));
    assert_eq!(behaviour.0.code(), Some(status), "{line}: {behaviour:?}");
    behaviour
}

#[test]
fn a_shell_pipeline_keeps_its_output_and_exit_status() {
    let stage = Stage::new();
    for (line, status) in [
        ("seq 1 200000 | sort -rn | head -5 | md5sum; exit 7", 7),
        ("yes | head -c 1000000 | wc -c; echo ${PIPESTATUS[@]}", 0),
        ("set -o pipefail; false | cat; echo $?; true | exit 3 | cat; echo ${PIPESTATUS[@]}; exit 0", 0),
        ("echo out; echo err >&2; (exit 5); echo $?", 0),
        ("cat < /etc/passwd | tr a-z A-Z | cksum; cat <(echo one) <(echo two)", 0),
        ("no-such-program; exit $?", 127),
        ("trap 'echo caught' USR1; kill -USR1 $$; trap 'echo bye' EXIT; exit 9", 9),
        ("coproc cat; echo hello >&${COPROC[1]}; read -r line <&${COPROC[0]}; echo $line; kill $COPROC_PID; wait", 0),
    ] {
        shell_alike(&stage, "/bin/bash", line, status);
    }
    shell_alike(&stage, "/bin/sh", "echo $0 $#; exec sh -c 'exec sh -c \"exit 42\"'", 42);
}

#[test]
fn a_death_by_signal_is_reported_as_one() {
    let stage = Stage::new();
    for signal in ["TERM", "SEGV", "ABRT", "KILL", "BUS", "SYS", "PIPE", "USR1", "HUP", "INT", "ALRM"] {
        let line = format!("ulimit -c 0; echo before; kill -{signal} $$; echo after");
        let (status, said, _) = alike(|world| stage.program(world, "/bin/sh").args(["-c", &line]));
        assert!(status.signal().is_some(), "{signal}: {status:?}");
        assert_eq!(said, "before\n");
    }
    for signal in ["SEGV", "KILL", "SYS", "TRAP"] {
        let line = format!("ulimit -c 0; sh -c 'kill -{signal} $$'; exit $?");
        let (status, ..) = alike(|world| stage.program(world, "/bin/sh").args(["-c", &line]));
        assert!(status.code() > Some(128), "{signal}: {status:?}");
    }
}

#[test]
fn a_child_without_signal_handlers_runs_as_any_other() {
    let stage = Stage::new();
    let program = stage.compile("cleared_handlers.c", &[]);
    let (_, said, _) = alike(|world| stage.program(world, &program));
    assert_eq!(said, "exited with 42\n");
}

/// Writes a C project with `files` small source files and a makefile.
fn write_project(stage: &Stage, folder: &str, files: usize) {
    stage.make_folder(folder);
    let mut declarations = String::new();
    let mut calls = String::new();
    for index in 0..files {
        let body =
            format!("int part_{index}(int x) {{ for (int i = 0; i < {index}; i++) x = x * 31 + i; return x; }}\n");
        stage.write(&format!("{folder}/part_{index}.c"), format!("#include \"parts.h\"\n{body}"));
        declarations += &format!("int part_{index}(int);\n");
        calls += &format!("    sum += (unsigned)part_{index}({index});\n");
    }
    stage.write(&format!("{folder}/parts.h"), format!("#include <stdio.h>\n#include <stdlib.h>\n{declarations}"));
    let main =
        format!("int main(void) {{\n    unsigned sum = 0;\n{calls}    printf(\"%u\\n\", sum);\n    return 0;\n}}\n");
    stage.write(&format!("{folder}/main.c"), format!("#include \"parts.h\"\n{main}"));
    let rules = "OBJECTS := $(patsubst %.c,%.o,$(wildcard *.c))\n\
                 program: $(OBJECTS)\n\t$(CC) -o $@ $(sort $(OBJECTS))\n\
                 %.o: %.c parts.h\n\t$(CC) -O1 -Wall -c -o $@ $<\n\
                 broken:\n\t$(CC) -c -o /dev/null no_such_file.c\n";
    stage.write(&format!("{folder}/Makefile"), rules);
}

#[test]
fn gcc_builds_an_identical_program_under_make_j2() {
    const FILES: usize = 24;
    let stage = Stage::new();
    require(&CC);
    let make = require(&MAKE);
    let built = [("bare", World::Bare), ("served", World::Transparent)].map(|(folder, world)| {
        write_project(&stage, folder, FILES);
        let run = || stage.program(world, make).current_dir(&stage.path(folder));
        let finished = run().arg("-j2").finish().succeeded();
        // make runs jobs in parallel, so the order of its lines varies.
        let mut lines: Vec<_> = finished.stdout.lines().map(str::to_owned).collect();
        lines.sort();
        let broken = behaviour(run().args(["-j2", "broken"]).finish());
        let broken = (broken.0, broken.1, broken.2.replace(folder, ""));
        let program = stage.path(&format!("{folder}/program"));
        let says = behaviour(stage.program(world, &program).finish().succeeded());
        (lines, finished.stderr, broken, says, fs::read(program).unwrap())
    });
    let [bare, served] = built;
    assert_eq!(bare.0.len(), FILES + 2);
    assert_eq!(served.0, bare.0, "what make said");
    assert_eq!((served.1, served.2, served.3), (bare.1, bare.2, bare.3));
    assert!(served.4 == bare.4, "the executables differ");
}

#[test]
fn sort_and_tar_write_identical_files() {
    let stage = Stage::new();
    write_project(&stage, "project", 40);
    let lines: String = (0..300_000_u32).map(|index| format!("{}\n", index.wrapping_mul(2_654_435_761))).collect();
    stage.write("lines", lines);
    shell_alike(&stage, "/bin/bash", "sort -n --parallel=2 -S 1M lines | cksum; sort -u lines | wc -l", 0);
    let pack = "tar --sort=name --mtime=@0 -cf - project | cksum; tar -czf packed.tar.gz project; \
                rm -rf again; mkdir again; tar -xzf packed.tar.gz -C again; diff -r project again/project && echo same";
    let (_, said, _) = shell_alike(&stage, "/bin/bash", pack, 0);
    assert!(said.ends_with("same\n"), "{said}");
}

#[test]
fn bash_controls_its_jobs() {
    let stage = Stage::new();
    // With job control each job gets its own process group. The shell's messages about jobs contain
    // process ids, so its standard error is not compared.
    let script = "set -m; exec 2>/dev/null
        sleep 1000 & first=$!
        sleep 1000 | cat & second=$!
        jobs
        kill -STOP %1
        until grep -q '^State:.T' /proc/$first/status; do :; done
        jobs %1
        kill -CONT %1; kill -TERM %1; wait $first; echo first: $?
        kill -KILL %2; wait $second; echo second: $?
        (exit 3) & wait $!; echo third: $?
        jobs; exit 11";
    stage.write("jobs.sh", script);
    let (status, said, _) = alike(|world| stage.program(world, "/bin/bash").arg("jobs.sh"));
    assert_eq!(status.code(), Some(11), "{said}");
    assert!(said.contains("first: 143") && said.contains("second: 137"), "{said}");
    // The shell has a terminal of its own. It gives the terminal to a job, and takes it back after
    // the job.
    let terminal = "bash --norc --noprofile -ic 'stty -a > /dev/null && echo has terminal; \
                    sh -c \"kill -STOP \\$\\$; echo goes on\"; echo stopped: $?; fg; echo ended: $?'";
    let (status, said, _) =
        alike(|world| stage.program(world, "/usr/bin/script").args(["-qec", terminal, "/dev/null"]));
    assert!(status.success(), "{said}");
    for words in ["has terminal", "stopped: 147", "goes on", "ended: 0"] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
}

#[test]
fn cancelled_threads_unwind_and_end() {
    let stage = Stage::new();
    let program = stage.compile("cancelled_threads.c", &[]);
    let (status, said, _) = alike(|world| stage.program(world, &program));
    assert!(status.success() && said == "3 checks hold\n", "{said}");
}

#[test]
fn signals_do_what_the_kernel_promises() {
    let stage = Stage::new();
    let program = stage.compile("signals.c", &[]);
    let (status, said, _) = alike(|world| stage.program(world, &program));
    assert!(status.success() && said == "16 checks hold\n", "{said}");
}

#[test]
fn a_python_program_with_processes_and_threads_keeps_its_output() {
    let stage = Stage::new();
    let python = harness::python();
    let script = "import concurrent.futures, multiprocessing, os, signal, subprocess, sys, threading, time\n\
        print(sorted(os.listdir('/proc/self/fd')))\n\
        pool = multiprocessing.Pool(3); print(pool.map(abs, range(-50, 0))); pool.close(); pool.join()\n\
        with concurrent.futures.ThreadPoolExecutor(8) as pool: print(sum(pool.map(len, [str(i) for i in range(10000)])))\n\
        print(subprocess.run(['sh', '-c', 'echo child; exit 3'], capture_output=True))\n\
        print(subprocess.run(['sh', '-c', 'kill -9 $$']).returncode)\n\
        signal.signal(signal.SIGALRM, lambda *a: print('alarm')); signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(0.05)\n\
        print(signal.pthread_sigmask(signal.SIG_BLOCK, []), os.cpu_count() > 0, threading.active_count())\n\
        sys.exit(12)\n";
    stage.write("program.py", script);
    let (status, said, _) = alike(|world| stage.program(world, &python).arg("program.py"));
    assert_eq!(status.code(), Some(12), "{said}");
}

/// usring refuses a program that it cannot serve, before the program starts.
#[test]
fn a_static_program_is_refused_with_a_message() {
    if harness::on_kernel() {
        return harness::skipped::skip("there is no usring");
    }
    let stage = Stage::new();
    let program = stage.path("static");
    stage.compile_as("call_cost.c", &["-static"], Path::new(&program));
    let finished = stage.program(World::Transparent, &program).finish();
    assert_eq!(finished.status.code(), Some(125), "{}", finished.report());
    assert_eq!(finished.stdout, "");
    assert!(finished.stderr.starts_with("usring") && finished.stderr.contains("static"), "{}", finished.report());
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.report());
}
