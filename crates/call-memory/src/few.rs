//! A list that is usually short, such as the list of the memory ranges that a call names. The first
//! [`FEW`] elements need no allocator.

use alloc::vec::Vec;

const FEW: usize = 4;

#[derive(Default)]
pub struct Few<T> {
    first: [T; FEW],
    count: usize,
    more: Vec<T>,
}

impl<T: Copy> Few<T> {
    pub fn push(&mut self, value: T) {
        match self.first.get_mut(self.count) {
            Some(place) => {
                *place = value;
                self.count += 1;
            }
            None => self.more.push(value),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.first[..self.count].iter().chain(&self.more)
    }
}
