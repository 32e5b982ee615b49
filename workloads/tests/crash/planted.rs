//! Planted bugs and their fixed twins.

use crate::{Crash, crash, programs};

/// Searches with the store of `programs/durable.c`, whose arguments are `kind`, `bug` and `way`.
/// `more` are additional options of `usring crash`.
fn store(kind: &str, bug: &str, way: &str, more: &[&str]) -> Crash {
    let programs = programs();
    let run = format!("{} {kind} {bug} {way}", programs.durable.display());
    let check = format!("{} {kind}", programs.check.display());
    // The file "value" begins with 0. In the kind "log", this is a header that counts no record. In
    // the kind "rename", it is the stored number.
    let setup = "printf '0\\n' > value";
    let arguments = [&["--setup", setup, "--run", &run, "--check", &check], more].concat();
    crash(&arguments)
}

const WAYS: [&str; 2] = ["call", "ring"];

#[test]
fn a_store_without_a_bug_is_not_accused() {
    for way in WAYS {
        for model in ["posix", "ext4-ordered", "device"] {
            store("rename", "none", way, &["--model", model]).found_nothing();
            store("log", "none", way, &["--model", model]).found_nothing();
        }
    }
}

#[test]
fn a_rename_without_fsync_of_its_folder_is_found() {
    for way in WAYS {
        let said = store("rename", "folder", way, &[]).found();
        let lost = "rename of \"new\" to \"value\"";
        assert!(said.contains(&format!("lost: #3 {lost}")), "{said}");
        assert!(said.contains("no fsync of the folder itself came after it"), "{said}");
        assert_eq!(said.contains("by ring"), way == "ring", "{said}");
    }
}

#[test]
fn a_rename_of_a_file_without_fsync_is_found_unless_the_file_system_orders_it() {
    for way in WAYS {
        let said = store("rename", "nosync", way, &[]).found();
        assert!(said.contains("of \"new\""), "{said}");
        assert!(said.contains("no fsync of \"new\" came after it"), "{said}");
        store("rename", "nosync", way, &["--model", "ext4-ordered"]).found_nothing();
    }
}

#[test]
fn a_promise_before_fsync_is_found() {
    for way in WAYS {
        for kind in ["rename", "log"] {
            let said = store(kind, "early", way, &[]).found();
            assert!(said.contains("promised"), "{said}");
            assert!(said.contains("the last line printed before the power loss: \"1\""), "{said}");
        }
    }
}

#[test]
fn a_header_before_its_body_is_found() {
    for way in WAYS {
        let said = store("log", "header", way, &[]).found();
        // In the first failing state that the search finds, any record can be missing or damaged.
        assert!(said.contains("the check said: record "), "{said}");
        assert!(said.contains(" is missing") || said.contains(" is damaged"), "{said}");
    }
}

#[test]
fn an_fsync_in_the_batch_of_its_write_is_found_and_a_linked_one_is_not() {
    let said = store("log", "beside", "ring", &[]).found();
    let reason = "the fsync of \"value\" was submitted while it was in flight, and does not cover it";
    assert!(said.contains(reason), "{said}");
    store("log", "linked", "ring", &[]).found_nothing();
}

#[test]
fn an_fsync_that_failed_and_was_repeated_is_found() {
    for way in WAYS {
        let inject = ["--inject", "fsync:error=EIO:when=1"];
        let said = store("log", "retry", way, &inject).found();
        assert!(said.contains("an fsync of \"value\" failed after it"), "{said}");
        store("log", "none", way, &inject).found_nothing();
        let inject = ["--inject", "fsync:error=EIO:effect=drop:when=1"];
        let said = store("log", "retry", way, &inject).found();
        assert!(said.contains("an fsync of \"value\" failed after it and dropped its bytes"), "{said}");
        store("log", "none", way, &inject).found_nothing();
    }
}
