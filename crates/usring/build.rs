//! Passes the build identity (a hash over the library's sources) to the compiler, for the launcher.

include!("../cli/build_identity.rs");

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../cli/build_identity.rs");
    provide_identity();
}
