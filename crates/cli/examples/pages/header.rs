//! Makes a manual page from a C header. The header's comments become the text of the page, and its
//! declarations become the synopsis.

use std::fmt::Write;

/// A part of a header.
enum Part {
    /// Paragraphs of a comment, one per element. A list item begins with `- `, and a line of an
    /// example begins with four blanks.
    Comment(Vec<String>),
    Code(String),
}

/// Returns the source of the manual page `name`(3), made from the C header `file`. `what`: the text
/// of the NAME section. The first comment of the header describes the library. Each later comment
/// describes the declaration below it.
pub fn page([name, file, what]: [&str; 3], date: &str, header: &str) -> String {
    let parts = parts(header);
    let mut page = format!(
        ".TH \"{title}\" \"3\" \"{date}\" \"usring {version}\"\n.SH NAME\n{name} \\- {what}\n.SH SYNOPSIS\n.nf\n\
         #include <{file}>\n\n",
        title = escape(&name.to_uppercase()),
        name = escape(name),
        version = env!("CARGO_PKG_VERSION"),
    );
    for part in &parts {
        if let Part::Code(code) = part {
            let _ = writeln!(page, "{}\n", lines(code));
        }
    }
    page.push_str("Build with $(pkg-config \\-\\-cflags \\-\\-libs usring).\n.fi\n.SH DESCRIPTION\n");
    let mut comment: Option<&[String]> = None;
    for (index, part) in parts.iter().enumerate() {
        match part {
            Part::Comment(paragraphs) if index == 0 => describe(&mut page, paragraphs),
            Part::Comment(paragraphs) => comment = Some(paragraphs),
            Part::Code(code) => {
                if let Some(paragraphs) = comment.take() {
                    let _ = writeln!(page, ".SS \"{}\"", escape(&title(code)));
                    describe(&mut page, paragraphs);
                }
            }
        }
    }
    page.push_str(".SH SEE ALSO\n.BR usring (1),\n.BR usring\\-run (1)\n");
    tidy(&page)
}

/// Returns what the first declaration of `code` declares: the name of a function, type or constant.
fn title(code: &str) -> String {
    let first = code.lines().next().unwrap_or_default();
    let words = |text: &str| text.trim().trim_end_matches([';', '{', ' ']).to_owned();
    match first.strip_prefix("#define ") {
        Some(rest) => words(rest.split_whitespace().next().unwrap_or(rest)),
        None => match first.split_once('(') {
            Some((before, _)) => words(before.rsplit([' ', '*']).next().unwrap_or(before)) + "()",
            None => words(first),
        },
    }
}

/// Splits a header into comments and the declarations between them. Comments inside a declaration
/// stay in it. Guards, `#include` lines, bodies of functions and the parts for C++ are dropped.
fn parts(header: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut code = String::new();
    let mut lines = header.lines();
    while let Some(line) = lines.next() {
        if let Some(first) = line.strip_prefix("/*") {
            end(&mut code, &mut parts);
            let mut text = vec![first.trim_end_matches("*/").to_owned()];
            let mut last = line;
            while !last.trim_end().ends_with("*/") {
                let Some(next) = lines.next() else { break };
                last = next;
                let content = next.strip_prefix(" *").unwrap_or(next).trim_end();
                text.push(content.trim_end_matches("*/").trim_end().to_owned());
            }
            parts.push(Part::Comment(paragraphs(&text)));
        } else if line.is_empty() {
            end(&mut code, &mut parts);
        } else if let Some(declaration) = line.strip_prefix("static inline ") {
            let _ = writeln!(code, "{declaration};");
            // Skips the function's body, which is no part of the interface.
            let _ = lines.find(|line| *line == "}");
        } else if !is_frame(line) {
            code.push_str(line);
            code.push('\n');
        }
    }
    end(&mut code, &mut parts);
    parts
}

fn is_frame(line: &str) -> bool {
    let frame = ["#if ", "#ifndef", "#ifdef", "#endif", "#include", "extern \"C\""];
    let is_guard = line.starts_with("#define USRING_") && line.ends_with("_H");
    is_guard || line == "}" || frame.iter().any(|start| line.starts_with(start))
}

fn end(code: &mut String, parts: &mut Vec<Part>) {
    if !code.is_empty() {
        parts.push(Part::Code(std::mem::take(code).trim_end().to_owned()));
    }
}

/// Joins the lines of a comment into paragraphs and list items. Lines of an example stay lines.
fn paragraphs(lines: &[String]) -> Vec<String> {
    let mut paragraphs: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in lines {
        let text = line.strip_prefix(' ').unwrap_or(line);
        let is_example = text.starts_with("    ");
        match paragraphs.last_mut() {
            Some(last) if is_open && !is_example && !text.starts_with("- ") && !text.is_empty() => {
                last.push(' ');
                last.push_str(text.trim_start());
            }
            _ if text.is_empty() => is_open = false,
            _ => {
                paragraphs.push(text.to_owned());
                is_open = !is_example;
            }
        }
    }
    paragraphs
}

fn describe(page: &mut String, paragraphs: &[String]) {
    let mut is_example = false;
    for (index, paragraph) in paragraphs.iter().enumerate() {
        let example = paragraph.strip_prefix("    ");
        if example.is_some() != is_example {
            page.push_str(if is_example { ".EE\n" } else { ".PP\n.EX\n" });
        }
        is_example = example.is_some();
        let _ = match (example, paragraph.strip_prefix("- ")) {
            (Some(example), _) => writeln!(page, "{}", lines(&format!("    {example}"))),
            (None, Some(item)) => writeln!(page, ".IP \\(bu 2\n{}", lines(item)),
            (None, None) if index == 0 => writeln!(page, "{}", lines(paragraph)),
            (None, None) => writeln!(page, ".PP\n{}", lines(paragraph)),
        };
    }
    if is_example {
        page.push_str(".EE\n");
    }
}

/// Escapes text for roff.
fn escape(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

/// Escapes lines of text for roff. Without the escape, roff would read a line that begins with a
/// dot or an apostrophe as a command.
fn lines(text: &str) -> String {
    let escaped = escape(&text.replace('\t', "        "));
    let mut out: Vec<String> = Vec::new();
    for line in escaped.lines() {
        out.push(if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.to_owned() });
    }
    out.join("\n")
}

/// Removes what `mandoc -Tlint` warns of: blanks at the ends of lines, a line break beside an empty
/// line, and a paragraph before a list item or another section.
pub fn tidy(page: &str) -> String {
    let all: Vec<&str> = page.lines().map(str::trim_end).collect();
    let mut tidy = String::new();
    for (index, line) in all.iter().enumerate() {
        let next = all.get(index + 1).copied().unwrap_or(".SH");
        let is_empty =
            *line == ".PP" && [".SH", ".SS", ".IP", ".TP", ".PP"].iter().any(|start| next.starts_with(start));
        let before = if index == 0 { "" } else { all[index - 1] };
        let is_break = *line == ".br" && [before, next].iter().any(|beside| matches!(*beside, "" | ".sp"));
        if !is_empty && !is_break {
            tidy.push_str(line);
            tidy.push('\n');
        }
    }
    tidy
}
