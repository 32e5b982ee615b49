//! `usring demo`: runs an ordinary io_uring program ([`program`]) three times:
//!
//! 1. with the kernel's io_uring denied, so that the program fails;
//! 2. under usring, with the kernel's io_uring still denied;
//! 3. on the kernel's io_uring, if that works here.

pub mod program;

use super::child::{self, System};
use super::table::Table;
use super::{Failure, Outcome, cleanup};
use indicatif::{ProgressBar, ProgressStyle};
use program::{BLOCK, Event, Figures};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  usring demo
  usring demo --directory /var/tmp --megabytes 256

Exit status: 0 if the program failed without io_uring, and under usring read back every block as it
had written it; otherwise 1.";

/// Show an io_uring program fail where io_uring is denied, and then run under usring.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Folder in which the demo writes its file, and removes it at the end. The default is the
    /// folder for temporary files (TMPDIR, or /tmp).
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,

    /// Size of the file in MiB, from 1 to 65536.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65536))]
    megabytes: u64,
}

/// Longest time that the program may take between two lines of its output.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the subcommand.
pub fn run(options: &Options) -> Outcome {
    let directory = options.directory.clone().unwrap_or_else(std::env::temp_dir);
    let file = directory.join(format!("usring-demo-{}", std::process::id()));
    let _file = cleanup::remove(&file);
    let demo = Demo { file: &file, blocks: (options.megabytes << 20) / BLOCK as u64 };
    let outcome = demo.show();
    match outcome {
        Ok(()) => Ok(0),
        Err(sentence) => Err(Failure::with_status(1, sentence)),
    }
}

struct Demo<'a> {
    file: &'a Path,
    blocks: u64,
}

impl Demo<'_> {
    fn show(&self) -> Result<(), String> {
        tell!("1. An io_uring program, with the kernel's io_uring denied as in Docker:\n");
        match self.run_on(System::Denied) {
            Ok(_) => return Err("the program ran although io_uring was denied to it".into()),
            Err(why) => tell!("   {why}\n"),
        }
        tell!("2. The same program under `usring run --deny-kernel --stats`:\n");
        let usring = self.run_on(System::Usring(&["--deny-kernel", "--stats"]))?;
        let blocks = self.blocks;
        tell!("   wrote {blocks} blocks of {BLOCK} bytes, read them back, and compared every byte\n");
        tell!("3. The same program on the kernel's own io_uring:\n");
        let kernel = self.run_on(System::Kernel);
        match &kernel {
            Ok(_) => tell!("   the kernel's io_uring works here, so the table shows both\n"),
            Err(why) => tell!("   {why}\n   (`usring doctor` says what blocks it)\n"),
        }
        print_table(&usring, kernel.as_deref().unwrap_or_default());
        Ok(())
    }

    /// Runs the program and shows its progress.
    fn run_on(&self, system: System) -> Result<Vec<Figures>, String> {
        let mut command: Command = child::command_on(system, &[], &child::ourselves()?)?;
        command.arg("demo-program").arg("--file").arg(self.file).args(["--blocks", &self.blocks.to_string()]);
        let bar = ProgressBar::new(2 * self.blocks).with_style(style());
        let _end = cleanup::end_bar(&bar);
        let mut figures = Vec::new();
        let output = child::follow(&mut command, TIMEOUT, |line| match serde_json::from_str(line) {
            Ok(Event::Progress { phase, done }) => {
                bar.set_message(phase.name());
                bar.set_position(done);
            }
            Ok(Event::Finished(of_phase)) => figures.push(of_phase),
            Err(_) => {}
        });
        bar.finish_and_clear();
        let output = output?;
        if !output.status.success() {
            return Err(child::complaint(&output));
        }
        // Under `usring run --stats`, standard error holds the table.
        String::from_utf8_lossy(&output.stderr).lines().for_each(|line| tell!("   {line}"));
        if !output.stderr.is_empty() {
            tell!("");
        }
        Ok(figures)
    }
}

fn style() -> ProgressStyle {
    let template = "   {msg:6} {bar:40} {percent:>3} %  {per_sec}";
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Prints the operations per second and the latencies of usring and of the kernel side by side.
fn print_table(usring: &[Figures], kernel: &[Figures]) {
    tell!("{BLOCK}-byte blocks at random places of a file in the page cache, queue depth {}:\n", program::DEPTH);
    let mut table = Table::new(["", "", "IOPS", "median", "99 %", "99.9 %", "most"], 2);
    for of_usring in usring {
        table.add(cells("usring", of_usring));
        let same = kernel.iter().filter(|figures| figures.phase == of_usring.phase);
        same.for_each(|figures| table.add(cells("kernel", figures)));
    }
    table.to_string().lines().for_each(|line| tell!("   {line}"));
    tell!("");
}

fn cells(system: &str, figures: &Figures) -> Vec<String> {
    let mut cells = vec![figures.phase.name().into(), system.into(), format!("{:.0}", figures.operations_per_second)];
    cells.extend(figures.latencies.map(microseconds));
    cells
}

fn microseconds(nanoseconds: u64) -> String {
    format!("{:.1} µs", nanoseconds as f64 / 1000.0)
}
