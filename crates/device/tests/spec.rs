//! Tests of a device's text: parsing, printing, and messages to the user.

use fastrand::Rng;
use usring_device::spec::parse;
use usring_device::{Distribution, OwnSupply, PollPolicy};

/// Parses a text. Checks that the device, printed and parsed again, gives an equal device.
fn read(text: &str) -> usring_device::Spec {
    let spec = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let written = spec.to_string();
    assert_eq!(parse(&written).as_ref(), Ok(&spec), "{text} is written as {written}");
    spec
}

fn complaint(text: &str) -> String {
    match parse(text) {
        Ok(spec) => panic!("{text} is read as {spec}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn sizes_are_bytes_or_binary_units() {
    for (text, bytes) in [("512", 512), ("4K", 4096), ("3M", 3 << 20), ("1G", 1 << 30), ("1T", 1 << 40)] {
        assert_eq!(read(&format!("null:size={text}")).device().size("size"), Some(bytes));
    }
    for (text, bytes) in [("1MiB", 1 << 20), ("1g", 1 << 30), ("1.5G", 3 << 29), ("4kiB", 4096), ("0.25t", 1 << 38)] {
        assert_eq!(read(&format!("null:size={text}")).device().size("size"), Some(bytes), "{text}");
    }
    assert_eq!(read("null:size=1048576").to_string(), "null:size=1M");
    assert_eq!(read("null:size=1536").to_string(), "null:size=1536");
}

#[test]
fn latencies_are_times_or_distributions() {
    let latency = |text: &str| read(&format!("null:size=1G,latency={text}")).device().distribution("latency").unwrap();
    assert_eq!(latency("10us"), Distribution::Constant(10_000));
    assert_eq!(latency("0ns"), Distribution::Constant(0));
    assert_eq!(latency("2s"), Distribution::Constant(2_000_000_000));
    assert_eq!(latency("uniform(5us,20us)"), Distribution::Uniform { from: 5_000, to: 20_000 });
    assert_eq!(latency("exponential(1ms)"), Distribution::Exponential { mean: 1_000_000 });
    assert_eq!(latency("normal(10us,2500ns)"), Distribution::Normal { mean: 10_000, deviation: 2_500 });
}

#[test]
fn the_poll_policy_is_an_option_of_the_whole_device() {
    assert_eq!(read("null:size=1G").policy(), PollPolicy::Classic);
    assert_eq!(read("null:size=1G,poll=interrupt").policy(), PollPolicy::Interrupt);
    assert_eq!(read("null:poll=hybrid,size=1G").policy(), PollPolicy::HybridAdaptive);
    assert_eq!(read("null:size=1G,poll=hybrid:5us,block=4096").policy(), PollPolicy::HybridFixed(5_000));
}

#[test]
fn wrappers_take_the_options_that_the_inner_device_does_not_know() {
    let text = "delay(null:size=1T,latency=10us,read=100us,write=1ms),poll=hybrid";
    assert_eq!(read(text).to_string(), text);
    let nested = read("error(delay(ram:size=1G,read=uniform(1us,2us)),seed=7,eio=1%,short=0.05,late-by=5ms)");
    assert_eq!(
        nested.to_string(),
        "error(delay(ram:size=1G,read=uniform(1us,2us)),seed=7,eio=0.01,short=0.05,late-by=5ms)"
    );
    assert_eq!((nested.device().kind(), nested.device().size("size")), ("ram", Some(1 << 30)));
    assert_eq!(nested.policy(), PollPolicy::Classic);
    assert_eq!(read("delay(null:size=1G)").to_string(), "delay(null:size=1G)");
    nested.open(Box::new(OwnSupply)).unwrap();
}

#[test]
fn probabilities_are_decimals_or_percent() {
    let eio = |text: &str| read(&format!("error(null:size=1G,eio={text})")).to_string();
    for (text, written) in [("1", "1"), ("0", "0"), ("100%", "1"), ("0.5%", "0.005"), ("0.000000001", "0.000000001")] {
        assert_eq!(eio(text), format!("error(null:size=1G,eio={written})"));
    }
    for text in ["1.1", "101%", "-0.1", ".5", "0.", "", "0.0000000001", "1e-3", "half"] {
        assert!(complaint(&format!("error(null:size=1G,eio={text})")).contains("not a value of 'eio'"), "{text}");
    }
    assert_eq!(
        complaint("error(null:size=1G,eio=0.6,late=0.6)"),
        "error at column 1: the sum of the probabilities is more than 1"
    );
}

/// Commas in parentheses need no backslash, so options of QEMU are written as QEMU has them.
#[test]
fn options_of_qemu_stand_in_parentheses() {
    let node = |text: &str| read(&format!("qemu:node={text},queues=2")).device().text("node").unwrap().to_owned();
    assert_eq!(node("(driver=ssh,server.host=h,path=/a)"), "driver=ssh,server.host=h,path=/a");
    assert_eq!(node("({\"driver\": \"raw\"})"), "{\"driver\": \"raw\"}");
    assert_eq!(node("( driver=file,filename=/a\\),,b(1) )"), "driver=file,filename=/a),,b(1)");
    let spec = "qemu:node=(driver=luks,key-secret=k),object=(secret,id=k,file=/k),read-only=on,reconnect=on";
    assert_eq!(read(spec).to_string(), spec);
    for text in ["driver=raw", "", "()", "( )", "(a"] {
        let complaint = complaint(&format!("qemu:node={text}"));
        assert!(complaint.contains("in parentheses") || complaint.contains("where ')' should be"), "{complaint}");
    }
}

#[test]
fn addresses_of_nbd_servers_are_kept_as_they_are() {
    let uri = "nbd+unix:///export?socket=/run/nbd.sock";
    assert_eq!(read(&format!("nbd:uri={uri},queues=1")).device().text("uri"), Some(uri));
    assert_eq!(
        complaint("nbd:"),
        "unknown option '' of nbd at column 5; nbd takes: uri, read-only, reconnect, queues, zero-copy"
    );
    assert_eq!(complaint("nbd:uri=nbd://h,queues=257"), "nbd at column 1: a device can have at most 256 queues");
}

#[test]
fn error_messages_name_mistakes_in_wrappers() {
    let delay = "delay takes: read, write, other, seed";
    assert_eq!(
        complaint("delay(ram:size=1G,raed=1us)"),
        format!("unknown option 'raed' of ram at column 19; ram takes: size, block; {delay}")
    );
    assert_eq!(
        complaint("delay(ram:size=1G,read=1us,size=2G)"),
        format!("unknown option 'size' of delay at column 28; {delay}")
    );
    assert_eq!(
        complaint("delay(ram:size=1G),read=1us"),
        format!("unknown option 'read' of delay at column 20; {delay}")
    );
    let inside = "applies to the whole device: put it after the last parenthesis";
    assert_eq!(complaint("delay(ram:size=1G,poll=classic)"), format!("'poll' at column 19 {inside}"));
    assert_eq!(complaint("delay(ram:size=1G,read=1us,poll=classic)"), format!("'poll' at column 28 {inside}"));
    assert_eq!(
        complaint("delay(ram:size=1G"),
        "the text ends at column 18, where ',' and an option, or ')', should be"
    );
    assert_eq!(complaint("delay:read=1us"), "':' at column 6, where '(' and the device inside should be");
    assert!(complaint("delay()").ends_with("wrappers of another device: delay, error"));
    let deep = format!("{}ram:size=1G{}", "delay(".repeat(9), ")".repeat(9));
    assert_eq!(complaint(&deep), "too many nested wrappers at column 49");
    read(&format!("{}ram:size=1G{}", "delay(".repeat(8), ")".repeat(8)));
}

#[test]
fn error_messages_name_the_mistake_and_its_column() {
    let takes = "null takes: size, latency, latency-seed, block";
    assert_eq!(complaint("null:sise=1G"), format!("unknown option 'sise' of null at column 6; {takes}"));
    assert_eq!(complaint("null:"), format!("unknown option '' of null at column 6; {takes}"));
    assert_eq!(complaint("null"), "null at column 1 needs size=, for example null:size=1G");
    assert_eq!(complaint("file"), "file at column 1 needs path=, for example file:path=/path/to/it");
    assert_eq!(complaint("delay(ram)"), "ram at column 7 needs size=, for example ram:size=1G");
    assert_eq!(complaint("null=3"), "'=' at column 5, where ':' and an option should be");
    assert_eq!(complaint("null:size"), "the text ends at column 10, where '=' and a value should be");
    assert_eq!(complaint("null:block=512"), "null at column 1 needs size=, for example null:size=1G");
    assert_eq!(complaint("null:size=1G,size=2G"), "option 'size' at column 14 is repeated");
    assert_eq!(
        complaint("null:size=1x"),
        "'1x' at column 11 is not a value of 'size', which is a size like 4096, 64K, 1MiB, 1.5G or 1T"
    );
    assert_eq!(complaint("null:size=1G)"), "')' at column 13, where the end should be");
    assert_eq!(complaint("null:size=1G,latency=uniform(5us"), "the text ends at column 33, where ')' should be");
    assert_eq!(
        complaint("null:size=1G,latency=5us\\"),
        "the text ends at column 26, where the character after a backslash should be"
    );
    assert_eq!(complaint("null:size=1000"), "null at column 1: the size is not a whole number of blocks");
    assert_eq!(complaint("null:size=0"), "null at column 1: a device must have at least one block");
    assert_eq!(complaint("null:size=4608,block=4096"), "null at column 1: the size is not a whole number of blocks");
    assert!(complaint("nul:size=1G").starts_with("unknown device 'nul' at column 1; there are: null"));
    assert!(complaint("\u{1b}[31m").contains("'\\u{1b}[31m'"), "control characters are escaped");
    assert!(complaint("ä").contains("at column 1"));
}

#[test]
fn invalid_values_are_refused() {
    let fractions = ["1.5", ".5G", "1.G", "1.1G", "0.0000001T", "1.5.5G", "1.-5G"];
    let units = ["", "G", "1K1", "1iB", "1GB", "1GIB", "iB", "0x10", " 1G"];
    let numbers = ["-1", "+1", "9223372036854775808", "8388608T"];
    for value in [&fractions[..], &units, &numbers].concat() {
        assert!(complaint(&format!("null:size={value}")).contains("not a value of 'size'"), "{value}");
    }
    for value in ["10", "us", "10 us", "uniform(5us)", "uniform(20us,5us)", "normal()", "gamma(1us)", "99999999999s"] {
        assert!(complaint(&format!("null:size=1G,latency={value}")).contains("not a value of 'latency'"), "{value}");
    }
    for value in ["", "adaptive", "hybrid:", "hybrid:0us", "hybrid:5"] {
        assert!(complaint(&format!("null:size=1G,poll={value}")).contains("not a value of 'poll'"), "{value}");
    }
    assert!(complaint("null:size=1G,block=1024").contains("512 or 4096"));
}

#[test]
fn a_parsed_device_can_be_opened() {
    let driver = read("null:size=1T,latency=10us,block=4096").open(Box::new(OwnSupply)).unwrap();
    assert_eq!((driver.geometry().size, driver.geometry().block), (1 << 40, 4096));
}

/// Random bytes, and random changes of valid texts. The parser either refuses a text with a
/// message, or returns a device. Such a device is printed and parsed again, which gives an equal
/// device.
#[test]
fn random_texts_are_refused_or_survive_a_round_trip() {
    let seeds = [
        "null:size=1T,latency=uniform(5us,20us),latency-seed=7,block=4096,poll=hybrid:5us",
        "delay(error(ram:size=1G,seed=7,eio=0.01,short=5%,late-by=10ms),read=100us,write=normal(1ms,1us)),poll=classic",
        "delay(delay(delay(delay(delay(delay(delay(delay(delay(delay(null:size=1G))))))))))",
        "file:path=/a\\,b\\(c\\)\\\\d,direct=on",
        "qemu:node=(driver=raw,file.driver=file,file.filename=/a\\)\\\\),object=(secret,id=k),queues=4",
        "nbd:uri=nbd+unix:///a\\,b?socket=/s,reconnect=on",
    ];
    let words =
        ["null:", "delay(", "error(", "size=", "poll=", ",", ")", "(", "\\", "=", "1G", "é", "99999999999999999999"];
    let mut noise = Rng::with_seed(1);
    let (mut good, mut bad) = (0, 0);
    for round in 0..60_000 {
        let mut bytes: Vec<u8> = match round % 3 {
            0 => (0..noise.usize(..40)).map(|_| noise.u8(..)).collect(),
            1 => (0..noise.usize(..20)).flat_map(|_| words[noise.usize(..words.len())].bytes()).collect(),
            _ => seeds[noise.usize(..seeds.len())].bytes().collect(),
        };
        for _ in 0..noise.usize(..3) {
            let at = noise.usize(..bytes.len() + 1);
            match noise.usize(..3) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, b",()=:\\0TK%"[noise.usize(..10)]),
                _ if at < bytes.len() => drop(bytes.remove(at)),
                _ => {}
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        match parse(&text) {
            Ok(spec) => {
                assert_eq!(parse(&spec.to_string()), Ok(spec), "{text}");
                good += 1;
            }
            Err(error) => {
                assert!(error.column <= text.chars().count() + 1 && !error.to_string().is_empty(), "{text}");
                bad += 1;
            }
        }
    }
    assert!(good > 1000 && bad > 1000, "{good} good and {bad} bad texts: the test needs many of both");
}
