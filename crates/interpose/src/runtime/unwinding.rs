//! Symbols for unwinding, to which the precompiled `core` and `alloc` refer. Their code never runs,
//! because a panic ends the process.

use core::arch::global_asm;

global_asm!(
    ".globl rust_eh_personality, _Unwind_Resume",
    ".hidden rust_eh_personality, _Unwind_Resume",
    ".type rust_eh_personality,@function",
    ".type _Unwind_Resume,@function",
    "rust_eh_personality:",
    "_Unwind_Resume:",
    "ud2",
);
