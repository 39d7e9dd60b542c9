//! Runs network on made-up batches and prints what comes out, as bits; expected.txt holds them.
#![allow(non_snake_case, dead_code)]

use network::Model;
// {{#hyper}}
use network::Hyper;
// {{/hyper}}

/// Batches: the upper eight bits of a congruential generator, as numbers of a type.
fn batch<T>(last: &mut u32, count: usize, number: fn(u32) -> T) -> Vec<T> {
    let mut word = || {
        *last = last.wrapping_mul(1664525).wrapping_add(1013904223);
        *last >> 24
    };
    (0..count).map(|_| number(word())).collect()
}

/// Multiples of 1/64 from -2 up to 2.
fn float(word: u32) -> f32 {
    (word as i32 - 128) as f32 / 64.0
}

/// Such a number in half precision, as its bits.
fn half(word: u32) -> u16 {
    let bits = float(word).to_bits();
    if bits & 0x7fff_ffff == 0 {
        return 0;
    }
    ((bits >> 16 & 0x8000) | ((bits >> 13 & 0x3fc00) - ((127 - 15) << 10)) | (bits >> 13 & 0x3ff))
        as u16
}

/// CRC-32, begun with !0 and inverted at the end.
fn checksum(state: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(state, |state, byte| {
        (0..8).fold(state ^ u32::from(*byte), |state, _| {
            state >> 1 ^ (0xedb8_8320 & (state & 1).wrapping_neg())
        })
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut model = Model::new()?;
    let mut last = 0;
    // {{#step}}
    for number in 1..=5 {
        //{{step}}
        let mut state = !0;
        model.save(|bytes| {
            state = checksum(state, bytes);
            true
        })?;
        println!("step {number}: loss {:0{{digits}}x}, variables {:08x}", loss{{bits}}, !state);
    }
    // {{/step}}
    //{{calls}}
    Ok(())
}
