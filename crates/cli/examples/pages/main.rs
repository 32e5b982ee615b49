//! Writes the manual pages and the shell completions into a folder, for `cargo xtask package`:
//!
//!     cargo run --package usring-cli --example pages -- FOLDER DATE
//!
//! - `man1`: usring(1) and a page for each subcommand, from the command line's own description.
//! - `man3`: io_setup2(3), usring-swap(3) and usring-inject(3), from the comments of the headers in
//!   `include`.
//! - `completions`: for bash, zsh and fish.

mod header;

use clap_complete::{Shell, generate_to};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(folder), Some(date)) = (arguments.next().map(PathBuf::from), arguments.next()) else {
        return Err("usage: pages FOLDER DATE".into());
    };
    let (man1, man3, completions) = (folder.join("man1"), folder.join("man3"), folder.join("completions"));
    for part in [&man1, &man3, &completions] {
        fs::create_dir_all(part)?;
    }
    commands(&man1, &date)?;
    headers(&man3, &date)?;
    let mut command = usring_cli::command();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut command, "usring", &completions)?;
    }
    Ok(())
}

/// Writes the pages of section 1.
fn commands(folder: &Path, date: &str) -> Result<(), Box<dyn Error>> {
    let mut command = usring_cli::command().disable_help_subcommand(true);
    // Propagates the version and the full names (`usring-run`) to the subcommands.
    command.build();
    page(&command, folder, date)
}

/// Writes the page of a command, and of each subcommand that is not hidden.
fn page(command: &clap::Command, folder: &Path, date: &str) -> Result<(), Box<dyn Error>> {
    let visible = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    for subcommand in visible.filter(|subcommand| subcommand.get_name() != "help") {
        page(subcommand, folder, date)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).title(name.to_uppercase()).date(date).render(&mut text)?;
    fs::write(folder.join(format!("{name}.1")), header::tidy(&String::from_utf8(text)?))?;
    Ok(())
}

/// Writes the pages of section 3.
fn headers(folder: &Path, date: &str) -> Result<(), Box<dyn Error>> {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    for names in [
        ["io_setup2", "usring_aio.h", "make a context of libaio that is polled"],
        ["usring-inject", "usring_inject.h", "make faults in a program's own tests"],
        ["usring-swap", "usring_swap.h", "memory of which only a part is resident"],
    ] {
        let [name, file, _] = names;
        let text = fs::read_to_string(include.join(file))?;
        fs::write(folder.join(format!("{name}.3")), header::page(names, date, &text))?;
    }
    Ok(())
}
