//! The rules of docs/style.md that a machine can check.

use super::text::Kind;

/// A sentence with more words is a finding.
const LONG_WORDS: usize = 30;
/// A sentence with more words is also a finding of [`Rule::Endless`].
const ENDLESS_WORDS: usize = 40;
const COMMENT_COLUMNS: usize = 100;
const DOCUMENT_COLUMNS: usize = 120;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The subject of a clause names nothing: "who", "somebody".
    Subject,
    /// A sentence of more than 30 words.
    Long,
    /// A sentence of more than 40 words.
    Endless,
    /// A line of more than 100 columns in a comment, or 120 in a document.
    Wide,
    /// A comment that begins with "The same", "Likewise" or "As above".
    Refers,
    /// A word that docs/style.md replaces.
    Banned,
}

impl Rule {
    pub const ALL: [Rule; 6] = [Rule::Subject, Rule::Long, Rule::Endless, Rule::Wide, Rule::Refers, Rule::Banned];

    pub fn name(self) -> &'static str {
        match self {
            Rule::Subject => "subject",
            Rule::Long => "long",
            Rule::Endless => "endless",
            Rule::Wide => "wide",
            Rule::Refers => "refers",
            Rule::Banned => "banned",
        }
    }
}

/// Words that name no actor. They count as findings anywhere in a sentence.
const NAMELESS: [&str; 6] = ["whoever", "whomever", "somebody", "everybody", "nobody", "anybody"];
/// Pronouns that count as findings if they are the subject, at the beginning of a clause.
const PRONOUNS: [&str; 4] = ["who", "what", "whatever", "whose"];
/// Words that docs/style.md replaces by better ones.
const BANNED: [&str; 40] = [
    "news",
    "taker",
    "takers",
    "disown",
    "disowns",
    "disowned",
    "lineage",
    "renounce",
    "renounces",
    "told",
    "untold",
    "attendant",
    "attendants",
    "errand",
    "errands",
    "courtesy",
    "courtesies",
    "heritage",
    "heir",
    "heirs",
    "surrender",
    "surrenders",
    "surrendered",
    "carrier",
    "carriers",
    "stillborn",
    "births",
    "unborn",
    "nap",
    "naps",
    "manner",
    "keeper",
    "keepers",
    "owes",
    "owed",
    "house",
    "rooms",
    "floors",
    "door",
    "doors",
];

/// Returns whether a line is wider than allowed. A line that consists of one long word (an address,
/// a path) cannot be broken, so it is allowed.
pub fn is_wide(kind: Kind, line: &str) -> bool {
    let most = if kind == Kind::Markdown { DOCUMENT_COLUMNS } else { COMMENT_COLUMNS };
    let text = line.trim_start().trim_start_matches(['/', '!', '-', '*', '>']);
    line.chars().count() > most && text.split_whitespace().count() > 1
}

/// Calls `note` for each rule that the sentence breaks.
pub fn of_sentence(sentence: &str, mut note: impl FnMut(Rule)) {
    // Splits only at spaces. `split_whitespace` would also split at the special spaces within code.
    let words: Vec<&str> = sentence.split(' ').filter(|word| !word.is_empty()).collect();
    if words.len() > LONG_WORDS {
        note(Rule::Long);
    }
    if words.len() > ENDLESS_WORDS {
        note(Rule::Endless);
    }
    let plain: Vec<String> = words.iter().map(|word| bare(word)).collect();
    for at in 0..words.len() {
        if is_nameless_subject(&words, &plain, at) {
            note(Rule::Subject);
        }
        if BANNED.contains(&plain[at].as_str()) {
            note(Rule::Banned);
        }
    }
    let begins = |phrase: &str| sentence.trim_start_matches(['*', '_', '(']).starts_with(phrase);
    if ["The same", "Likewise", "As above", "Ditto"].iter().any(|phrase| begins(phrase)) {
        note(Rule::Refers);
    }
}

fn is_nameless_subject(words: &[&str], plain: &[String], at: usize) -> bool {
    let word = plain[at].as_str();
    if NAMELESS.contains(&word) {
        return true;
    }
    let is_question = words.last().is_some_and(|last| last.ends_with('?'));
    let begins_clause = at == 0 || words[at - 1].ends_with([':', ';']);
    begins_clause && !is_question && PRONOUNS.contains(&word)
}

/// Returns the word in lower case and without punctuation. For code, quoted words and the
/// placeholders of a format returns an empty string, so that no rule applies to them.
fn bare(word: &str) -> String {
    if word.contains('`') || word.starts_with(['"', '{']) {
        return String::new();
    }
    word.trim_matches(|character: char| !character.is_alphanumeric()).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(sentence: &str) -> Vec<Rule> {
        let mut rules = Vec::new();
        of_sentence(sentence, |rule| rules.push(rule));
        rules
    }

    #[test]
    fn a_pronoun_that_begins_a_clause_is_a_nameless_subject() {
        assert_eq!(broken("Who waits is woken."), [Rule::Subject]);
        assert_eq!(broken("Done: what waited wakes."), [Rule::Subject]);
        assert_eq!(broken("It wakes whoever waits."), [Rule::Subject]);
        assert_eq!(broken("The thread that waits knows what it waits for."), []);
        assert_eq!(broken("Who needs it?"), []);
        assert_eq!(broken("{name}: {what} failed"), []);
    }

    #[test]
    fn long_sentences_are_found_at_two_lengths() {
        let words = |count: usize| vec!["word"; count].join(" ");
        assert_eq!(broken(&words(30)), []);
        assert_eq!(broken(&words(31)), [Rule::Long]);
        assert_eq!(broken(&words(41)), [Rule::Long, Rule::Endless]);
        assert_eq!(broken(&format!("`{}`", vec!["code"; 41].join("\u{a0}"))), []);
    }

    #[test]
    fn a_replaced_word_is_found_unless_it_is_quoted_code() {
        assert_eq!(broken("The waiter is told."), [Rule::Banned]);
        assert_eq!(broken("The module `told` sets the flag."), []);
    }

    #[test]
    fn a_sentence_that_refers_to_its_neighbour_is_found() {
        assert_eq!(broken("The same for reads."), [Rule::Refers]);
        assert_eq!(broken("Both take the same lock."), []);
    }

    #[test]
    fn a_wide_line_is_found_unless_it_is_one_word() {
        let wide = format!("// {} end", "x".repeat(COMMENT_COLUMNS));
        assert!(is_wide(Kind::Rust, &wide));
        assert!(!is_wide(Kind::Rust, &format!("// https://{}", "x".repeat(COMMENT_COLUMNS))));
        assert!(!is_wide(Kind::Markdown, &wide));
    }
}
