//! Writes a case's transcript into the source, into the `case!` below the case's function. If a
//! transcript has more than [`MOST_LINES`] lines, it goes to a separate text file, which the
//! `case!` includes.

use std::path::{Path, PathBuf};

use crate::case::Case;

/// Most lines of a transcript that is a string in the source. A longer one gets a file of its own.
const MOST_LINES: usize = 25;
/// Most columns of a transcript in the line of its `case!`. A longer one begins on the next line.
const MOST_COLUMNS: usize = 60;

/// Makes `output` the expected transcript of the case on usring if `usring` is true, and otherwise
/// on the kernel.
pub fn record(case: &Case, usring: bool, output: &str) -> Result<(), String> {
    let prefix = format!("{}: ", case.name());
    let lines: Option<Vec<&str>> = output.lines().map(|line| line.strip_prefix(&prefix)).collect();
    let lines = lines.ok_or_else(|| format!("a line does not begin with `{prefix}`:\n{output}"))?;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("").join(case.file);
    let source = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let (start, end) =
        place(&source, case, usring).ok_or_else(|| format!("{}: the `case!` is not found", path.display()))?;
    let kept = Kept::of(case, usring, &path);
    let text = if lines.len() > MOST_LINES {
        write(&kept.path, &(lines.join("\n") + "\n"))?;
        format!("include_str!(\"{}\")", kept.name)
    } else {
        // The case's previous transcript may have been long, and so in a file of its own. The error
        // is ignored, because this file need not exist.
        let _ = std::fs::remove_file(&kept.path);
        literal(&lines)
    };
    write(&path, &format!("{}{text}{}", &source[..start], &source[end..]))
}

/// The file beside a case's source file that contains a long transcript of the case.
struct Kept {
    path: PathBuf,
    /// Path of the file, relative to the folder of the source file.
    name: String,
}

impl Kept {
    fn of(case: &Case, usring: bool, source: &Path) -> Kept {
        let side = if usring { ".usring" } else { "" };
        let file = format!("{}{side}.txt", case.behaviour());
        let at_top = source.file_stem().is_some_and(|stem| stem == case.group());
        let name = if at_top { format!("{}/{file}", case.group()) } else { file };
        Kept { path: source.with_file_name(&name), name }
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let folder = path.parent().unwrap_or(path);
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(path, text));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns the byte range, in the source text, of the case's transcript, which is a string or
/// `include_str!`. Returns `None` if the case has no such transcript.
fn place(source: &str, case: &Case, usring: bool) -> Option<(usize, usize)> {
    let call = format!("\ncase!({} => ", case.identifiers.join(" as "));
    let start = source.find(&call)? + call.len();
    let end = start + expression(&source[start..])?;
    if !usring {
        return Some((start, end));
    }
    let start = end + source[end..].strip_prefix(USRING).map(|_| USRING.len())?;
    Some((start, start + expression(&source[start..])?))
}

const USRING: &str = ", usring => ";

/// Returns the length in bytes of the string, or of the `include_str!`, with which `text` begins.
fn expression(text: &str) -> Option<usize> {
    if text.starts_with("include_str!(") {
        return text.find(')').map(|end| end + 1);
    }
    let inner = text.strip_prefix('"')?;
    let mut escaped = false;
    let end = inner.find(|character| {
        let ends = character == '"' && !escaped;
        escaped = character == '\\' && !escaped;
        ends
    })?;
    Some(end + 2)
}

/// Returns a transcript as a string literal.
fn literal(lines: &[&str]) -> String {
    match lines {
        [line] if line.len() <= MOST_COLUMNS => format!("\"{}\"", escaped(line)),
        _ => {
            let lines: String = lines.iter().map(|line| format!("    {}\n", escaped(line))).collect();
            format!("\"\n{lines}\"")
        }
    }
}

/// Escapes a line of a transcript for a string literal. This includes a space at the line's end,
/// because editors would remove it.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\\\").replace('"', "\\\"");
    line.strip_suffix(' ').map_or(line.clone(), |start| format!("{start}\\x20"))
}
