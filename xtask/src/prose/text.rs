//! Extracts the sentences of a source file or document, and the lines whose width is checked.
//!
//! Code blocks, tables and headings are left out. Inline code counts as one word. In Rust and C
//! only comments on lines of their own are read, and in Rust also string literals of at least
//! [`MESSAGE_WORDS`] words.

use proc_macro2::{TokenStream, TokenTree};
use std::str::FromStr;

/// Least number of words of a string literal that counts as a message. A shorter one is a name or a
/// format.
const MESSAGE_WORDS: usize = 5;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Rust,
    C,
    Markdown,
}

impl Kind {
    /// Returns the kind of a file. `None` if the file has no sentences that are checked.
    pub fn of(file: &str) -> Option<Kind> {
        match file.rsplit_once('.')?.1 {
            "rs" => Some(Kind::Rust),
            "c" | "h" => Some(Kind::C),
            "md" => Some(Kind::Markdown),
            _ => None,
        }
    }
}

pub struct Sentence {
    /// Number of the line at which the sentence's paragraph begins.
    pub line: usize,
    pub text: String,
}

#[derive(Default)]
pub struct Extract {
    pub sentences: Vec<Sentence>,
    /// Comment lines or, of a document, all lines except those of code and tables.
    pub lines: Vec<(usize, String)>,
}

pub fn extract(kind: Kind, content: &str) -> Extract {
    let mut extract = Extract::default();
    let mut paragraph = Paragraph::default();
    let mut fenced = false;
    for (index, whole) in content.lines().enumerate() {
        let prose = match kind {
            Kind::Markdown => Some(whole.trim()),
            Kind::Rust => rust_comment(whole),
            Kind::C => c_comment(whole),
        };
        let Some(prose) = prose else {
            paragraph.end(&mut extract.sentences);
            fenced = false;
            continue;
        };
        if prose.starts_with("```") {
            fenced = !fenced;
            paragraph.end(&mut extract.sentences);
            continue;
        }
        let indented = match kind {
            Kind::Markdown => whole.starts_with("    "),
            Kind::C => whole.trim_start().starts_with("*     "),
            Kind::Rust => false,
        };
        if fenced || indented || prose.starts_with('|') || prose.starts_with('#') {
            paragraph.end(&mut extract.sentences);
            continue;
        }
        extract.lines.push((index + 1, whole.to_owned()));
        paragraph.add(index + 1, prose, &mut extract.sentences);
    }
    paragraph.end(&mut extract.sentences);
    if kind == Kind::Rust {
        extract.sentences.extend(messages(content));
    }
    extract
}

/// Returns the text of a line that is nothing but a comment. `None` for other lines.
fn rust_comment(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("//")?;
    Some(rest.strip_prefix(['/', '!']).unwrap_or(rest).trim())
}

fn c_comment(line: &str) -> Option<&str> {
    let line = line.trim();
    let rest = line.strip_prefix("//").or_else(|| line.strip_prefix("/*")).or_else(|| line.strip_prefix("* "))?;
    Some(rest.trim_start_matches('*').trim_end_matches("*/").trim())
}

#[derive(Default)]
struct Paragraph {
    line: usize,
    text: String,
}

impl Paragraph {
    fn add(&mut self, line: usize, prose: &str, sentences: &mut Vec<Sentence>) {
        let item = list_item(prose);
        if prose.is_empty() || item.is_some() {
            self.end(sentences);
        }
        if self.text.is_empty() {
            self.line = line;
        }
        self.text.push_str(item.unwrap_or(prose));
        self.text.push(' ');
    }

    fn end(&mut self, sentences: &mut Vec<Sentence>) {
        let text = std::mem::take(&mut self.text);
        sentences.extend(split(&text).into_iter().map(|text| Sentence { line: self.line, text }));
    }
}

/// Returns the text after a bullet or a number. `None` if the line is no list item.
fn list_item(prose: &str) -> Option<&str> {
    if let Some(rest) = prose.strip_prefix("- ").or_else(|| prose.strip_prefix("* ")) {
        return Some(rest);
    }
    let (number, rest) = prose.split_once(". ")?;
    (!number.is_empty() && number.chars().all(|digit| digit.is_ascii_digit())).then_some(rest)
}

/// Splits a text into sentences: after a full stop, question mark or exclamation mark, if a
/// capital, a backtick, a bracket, the word "usring" or the end follows.
fn split(text: &str) -> Vec<String> {
    let words = with_code_as_one_word(text);
    let mut sentences = Vec::new();
    let mut sentence: Vec<&str> = Vec::new();
    for (index, word) in words.iter().enumerate() {
        sentence.push(word);
        let ends = word.trim_end_matches([')', '"', '”', '*', '_']).ends_with(['.', '!', '?']);
        let abbreviated = matches!(word.as_str(), "e.g." | "i.e." | "etc." | "vs.");
        let next_begins = words.get(index + 1).is_none_or(|next| begins_sentence(next));
        if ends && !abbreviated && next_begins {
            sentences.push(sentence.join(" "));
            sentence.clear();
        }
    }
    if !sentence.is_empty() {
        sentences.push(sentence.join(" "));
    }
    sentences
}

fn begins_sentence(word: &str) -> bool {
    let begins = |first: char| first.is_uppercase() || matches!(first, '`' | '[' | '(' | '"' | '*');
    let after_name = word.strip_prefix("usring").map(|rest| rest.chars().next());
    word.starts_with(begins) || after_name.is_some_and(|next| next.is_none_or(|next| matches!(next, '\'' | ',' | ':')))
}

fn with_code_as_one_word(text: &str) -> Vec<String> {
    let mut within = false;
    let joined: String = text
        .chars()
        .map(|character| {
            within ^= character == '`';
            if within && character == ' ' { '\u{a0}' } else { character }
        })
        .collect();
    // `split_whitespace` would also split at the no-break spaces that were put into code above.
    joined.split([' ', '\n', '\t']).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Returns the sentences in string literals.
fn messages(content: &str) -> Vec<Sentence> {
    let mut found = Vec::new();
    if let Ok(tokens) = TokenStream::from_str(content) {
        collect_literals(tokens, &mut found);
    }
    found
}

fn collect_literals(tokens: TokenStream, found: &mut Vec<Sentence>) {
    let mut is_attribute = false;
    for token in tokens {
        match token {
            // `#[doc = "…"]` is a doc comment, whose text was already read as a comment.
            TokenTree::Group(group) if is_attribute => drop(group),
            TokenTree::Group(group) => collect_literals(group.stream(), found),
            TokenTree::Literal(literal) => {
                let line = literal.span().start().line;
                let Ok(text) = syn::parse_str::<syn::LitStr>(&literal.to_string()) else { continue };
                let text = text.value();
                if text.split_whitespace().count() >= MESSAGE_WORDS && !text.contains(['\n', ';', '=']) {
                    found.extend(split(&text).into_iter().map(|text| Sentence { line, text }));
                }
            }
            TokenTree::Punct(mark) if mark.as_char() == '#' || is_attribute && mark.as_char() == '!' => {
                is_attribute = true;
                continue;
            }
            _ => {}
        }
        is_attribute = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentences(kind: Kind, content: &str) -> Vec<String> {
        extract(kind, content).sentences.into_iter().map(|sentence| sentence.text).collect()
    }

    #[test]
    fn a_comment_over_several_lines_is_split_into_its_sentences() {
        let content = "/// Wakes the sleeper. Returns\n/// whether it slept.\nfn wake() {}\n// Later.\n";
        assert_eq!(sentences(Kind::Rust, content), ["Wakes the sleeper.", "Returns whether it slept.", "Later."]);
    }

    #[test]
    fn code_tables_and_headings_of_a_document_are_no_sentences() {
        let content = "# Title\n\nText `of one word`.\n\n```\ncode here.\n```\n| a | table |\n\n    indented code\n\n- An item\n- Another\n";
        assert_eq!(sentences(Kind::Markdown, content), ["Text `of\u{a0}one\u{a0}word`.", "An item", "Another"]);
    }

    #[test]
    fn indented_code_in_a_comment_of_c_is_no_sentence() {
        let content = "/* Maps it.\n *\n *     int error = map();\n *\n * Then use it. */\n";
        assert_eq!(sentences(Kind::C, content), ["Maps it.", "Then use it."]);
    }

    #[test]
    fn messages_are_read_and_short_literals_are_not() {
        let content = "fn f() { say(\"the file is not a block device\"); say(\"short one\"); }\n";
        assert_eq!(sentences(Kind::Rust, content), ["the file is not a block device"]);
    }

    #[test]
    fn a_full_stop_within_a_number_or_a_name_ends_nothing() {
        assert_eq!(split("Takes 1.5 ms. See fork.rs for it."), ["Takes 1.5 ms.", "See fork.rs for it."]);
    }

    #[test]
    fn a_sentence_may_begin_with_the_name_of_usring() {
        assert_eq!(split("It waits. usring's thread wakes it."), ["It waits.", "usring's thread wakes it."]);
        assert_eq!(split("It waits. usring wakes it."), ["It waits.", "usring wakes it."]);
        assert_eq!(split("See e.g. usring.rs. usring_ring.h has it."), ["See e.g. usring.rs. usring_ring.h has it."]);
    }
}
