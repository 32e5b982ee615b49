//! Patterns of file names: `*` stands for any characters, `?` for one character, `[…]` for one of a
//! set. A `*` also stands for slashes, so `*.wal` means every file with that ending.

/// Returns whether the pattern matches the whole path.
pub fn matches(pattern: &[u8], path: &[u8]) -> bool {
    let (mut pattern_at, mut path_at) = (0, 0);
    // For the last `*`: the position after the `*` in the pattern, and the end of the part of the
    // path that the `*` covers. After a mismatch the `*` covers one character more.
    let mut retry = None;
    loop {
        if pattern.get(pattern_at) == Some(&b'*') {
            pattern_at += 1;
            retry = Some((pattern_at, path_at));
            continue;
        }
        if path_at == path.len() && pattern_at == pattern.len() {
            return true;
        }
        if path_at < path.len()
            && let Some(length) = one(&pattern[pattern_at..], path[path_at])
        {
            pattern_at += length;
            path_at += 1;
            continue;
        }
        let Some((from, at)) = retry.filter(|(_, at)| *at < path.len()) else { return false };
        (pattern_at, path_at) = (from, at + 1);
        retry = Some((from, at + 1));
    }
}

/// Returns the length, in bytes, of the pattern's first element if that element matches
/// `character`; `None` if it does not match.
fn one(pattern: &[u8], character: u8) -> Option<usize> {
    match pattern.first()? {
        b'?' => Some(1),
        b'[' => one_of_set(pattern, character),
        b'\\' if pattern.len() > 1 => (pattern[1] == character).then_some(2),
        plain => (*plain == character).then_some(1),
    }
}

/// Matches `character` with the set at the beginning of the pattern, such as `[abc]`, `[a-c]` or
/// `[!a]`. Returns the length of the set's text in bytes; `None` if the set does not match. A
/// bracket that is never closed stands for itself.
fn one_of_set(pattern: &[u8], character: u8) -> Option<usize> {
    let negated = matches!(pattern.get(1), Some(b'!' | b'^'));
    let start = 1 + usize::from(negated);
    // A `]` directly after the set's `[` or `[!` is a member of the set and does not end it.
    let end = pattern.iter().skip(start + 1).position(|byte| *byte == b']').map(|at| at + start + 1);
    let Some(end) = end else { return (character == b'[').then_some(1) };
    let set = &pattern[start..end];
    let mut at = 0;
    let mut found = false;
    while at < set.len() {
        if at + 2 < set.len() && set[at + 1] == b'-' {
            found |= (set[at]..=set[at + 2]).contains(&character);
            at += 3;
        } else {
            found |= set[at] == character;
            at += 1;
        }
    }
    (found != negated).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_match(pattern: &str, path: &str) -> bool {
        matches(pattern.as_bytes(), path.as_bytes())
    }

    #[test]
    fn a_star_stands_for_any_characters_even_slashes() {
        assert!(is_match("*.wal", "/srv/db/1.wal"));
        assert!(is_match("/srv/*", "/srv/db/1.wal"));
        assert!(is_match("*b*b*", "abcb"));
        assert!(is_match("*", ""));
        assert!(!is_match("*.wal", "/srv/db/1.wal.old"));
    }

    #[test]
    fn a_question_mark_and_a_set_stand_for_one_character() {
        assert!(is_match("/f?le", "/file"));
        assert!(!is_match("/f?le", "/fle"));
        assert!(is_match("*[0-9].db", "x7.db"));
        assert!(!is_match("*[!0-9].db", "x7.db"));
        assert!(is_match("[]x]", "]"));
        assert!(is_match("[", "["));
        assert!(is_match("a\\*", "a*"));
        assert!(!is_match("a\\*", "ab"));
    }
}
