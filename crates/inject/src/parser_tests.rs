//! Tests of the parser: strace's examples, and the error message for each wrong text.

use super::*;
use usring_uapi::general as linux;
use usring_uapi::opcode;

fn reason(text: &str) -> String {
    parse(text).unwrap_err().reason().to_owned()
}

fn caret(text: &str) -> String {
    let message = parse(text).unwrap_err().to_string();
    let below = message.lines().last().unwrap();
    let at = below.find('^').unwrap();
    message.lines().nth(1).unwrap()[at..].chars().take(below.len() - at).collect()
}

#[test]
fn the_examples_of_straces_manual_are_understood() {
    let chdir = parse("chdir:error=ENOENT:when=3+").unwrap();
    assert_eq!(chdir.action.answer, Some(Answer::Error(2)));
    assert!(chdir.set.contains(Kind::Call, linux::__NR_chdir as u16));
    assert!(chdir.when.includes(4) && !chdir.when.includes(2));
    let file = parse("file:error=ENOENT").unwrap();
    assert!(file.set.contains(Kind::Call, linux::__NR_openat as u16));
    let both = parse("read,write:error=EIO:when=3+2").unwrap();
    assert!(both.when.includes(5) && !both.when.includes(4));
    let all = parse("write:error=5:signal=USR1:delay_enter=100:delay_exit=1.5ms:when=1:when=2").unwrap();
    assert_eq!(all.action.signal, Some(10));
    assert_eq!(all.action.delay_enter, Some(Distribution::Constant(100_000)));
    assert_eq!(all.action.delay_exit, Some(Distribution::Constant(1_500_000)));
    assert!(all.when.includes(2) && !all.when.includes(1), "the last when= holds");
    assert_eq!(parse("read:retval=3").unwrap().action.answer, Some(Answer::Value(3)));
}

#[test]
fn what_rings_need_is_understood() {
    let rule = parse("ring:read,recv:short=50%:path=*\\:x.db:fd=7:user_data=0x2a:ring=2:p=1%:after=2s").unwrap();
    assert!(rule.set.contains(Kind::Ring, opcode::RECV.into()) && !rule.set.contains(Kind::Call, 0));
    assert_eq!(rule.conditions.path.as_deref(), Some(b"*:x.db".as_slice()));
    assert_eq!(
        (rule.conditions.descriptor, rule.conditions.user_data, rule.conditions.ring),
        (Some(7), Some(42), Some(2))
    );
    assert_eq!(rule.conditions.after, 2_000_000_000);
    assert_eq!(rule.chance, Probability::parse("0.01"));
    assert!(parse("setup,enter,register:error=EPERM").is_ok());
    assert_eq!(parse("fsync:error=EIO:effect=done").unwrap().action.effect, Effect::Done);
    let partial = parse("write:error=EIO:effect=partial").unwrap();
    assert_eq!(partial.action.short, Probability::parse("50%").map(Short::Share));
    assert_eq!(
        parse("nop:delay=uniform(1ms,2ms)").unwrap().action.delay_enter.unwrap().to_string(),
        "uniform(1ms,2ms)"
    );
}

#[test]
fn a_wrong_name_is_pointed_at() {
    assert_eq!(caret("write,raed:error=EIO"), "raed");
    assert!(reason("write,raed:error=EIO").contains("did you mean 'read'?"));
    assert!(reason("%disk:error=EIO").contains("%sync"));
    assert!(reason("mmap:error=ENOMEM").contains("lists them"));
    assert!(reason(":error=EIO").contains("begins with the names"));
}

#[test]
fn a_name_of_another_kind_is_pointed_at() {
    assert_eq!(caret("call:fsync,recv:error=EIO"), "recv");
    assert!(reason("call:recv:error=EIO").contains("'recv' names requests of rings: write ring:"));
    assert!(reason("ring:pread64:error=EIO").contains("plain system calls: write call:"));
    assert!(reason("aio:%net:error=EIO").contains("requests of rings"));
    assert!(reason("ring:!mkdir:error=EIO").contains("plain system calls"));
    for right in ["aio:none", "aio:all", "call:?recv,read", "aio:%file,?nothing", "recv"] {
        let rule = parse(&format!("{right}:error=EIO"));
        assert!(rule.is_ok() || right.contains("%file"), "{right}: {rule:?}");
    }
}

#[test]
fn a_wrong_key_or_value_is_pointed_at() {
    assert_eq!(caret("read:error=EOI"), "EOI");
    assert!(reason("read:error=EOI").contains("the name of an errno"));
    assert_eq!(caret("read:eror=EIO"), "eror");
    assert!(reason("read:eror=EIO").contains("did you mean 'error'?"));
    assert!(reason("read:error=EIO:when=0").contains("first[..last]"));
    for key in ["ring", "process", "nth"] {
        assert!(reason(&format!("ring:read:error=EIO:{key}=0")).contains(", from 1"), "{key}");
    }
    assert!(reason("read:error").contains("needs a value"));
    assert!(reason("read:error=EIO::").contains("missing between colons"));
    assert!(reason("read:poke_exit=@arg1=00").contains("use strace(1)"));
    assert!(reason("read:p=2").contains("a probability"));
    assert!(reason("read:retval=-1").contains("at least 0"));
}

#[test]
fn fields_that_contradict_each_other_are_refused() {
    assert!(reason("read").contains("needs an action"));
    assert!(reason("read:when=3").contains("needs an action"));
    assert_eq!(caret("read:error=EIO:retval=3"), "retval=3");
    assert!(reason("read:error=EIO:error=EPERM").contains("only once"));
    for (first, second) in [("retval=1", "res=1"), ("delay=1ms", "delay_enter=1ms")] {
        assert!(reason(&format!("read:{first}:{second}")).contains("only once"));
        assert!(reason(&format!("read:{second}:{first}")).contains("only once"));
    }
    assert!(reason("read:effect=done:delay=1ms").contains("add error="));
    assert!(reason("read:error=EIO:short=1").contains("effect=partial"));
}

#[test]
fn an_action_that_does_not_work_on_a_call_is_refused_with_the_reason() {
    assert!(reason("read,fsync:short=1").contains("'fsync', which transfers no bytes"));
    assert!(reason("fsync:error=EIO:effect=partial").contains("'fsync', which transfers no bytes"));
    assert!(reason("call:read:user_data=1:error=EIO").contains("plain system call"));
    assert!(reason("write:flip=1").contains("'write', which reads nothing"));
    assert!(reason("call:read:overflow").contains("no request of a ring"));
    assert!(reason("aio:read:overflow").contains("no request of a ring"));
    assert!(reason("call:read:reorder=1").contains("plain system call"));
    assert!(reason("read:cancel:error=EIO").contains("always answers -ECANCELED"));
    assert!(reason("read:overflow=1").contains("takes no value"));
    assert!(reason("read:flip=0").contains("a number of bits"));
    assert!(reason("read:error=EIO:by=inline").contains("add effect=done"));
    assert!(reason("read:short=1:by=inline").contains("only afterwards"));
    assert!(reason("read:cancel:by=poll").contains("drop by="));
    assert!(reason("read:error=EIO:by=kernel").contains("inline, poll or worker"));
    assert!(reason("call:read:error=EIO:by=poll").contains("plain system call"));
    assert!(reason("write:error=EIO:effect=drop").contains("'write', which makes no data durable"));
    assert!(reason("fsync:retval=0:effect=drop").contains("a sync that drops its data fails"));
    let rw = parse("%rw:short=1").unwrap();
    assert!(rw.set.contains(Kind::Ring, opcode::READ.into()), "members of a class that cannot are left out");
    assert!(!rw.set.contains(Kind::Ring, opcode::SPLICE.into()));
}

#[test]
fn times_are_straces() {
    assert_eq!(span("10"), Some(10_000));
    assert_eq!(span("1.5ms"), Some(1_500_000));
    assert_eq!(span(".5s"), Some(500_000_000));
    assert_eq!(span("7ns"), Some(7));
    assert_eq!(span("0.001us"), Some(1));
    for text in ["", "s", ".", "-1", "1m", "1e3", "99999999999999999999s"] {
        assert_eq!(span(text), None, "{text}");
    }
}
