//! Colours that are distinguishable on white and on black.

use std::fmt::Write;

use plotters::style::RGBColor;

/// A colour. `Ink`, `Muted`, `Grid` and `Paper` are named after their use in a figure, the others after their hue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    Ink,
    Muted,
    Grid,
    Paper,
    Blue,
    Red,
    Green,
    Orange,
    Purple,
    Teal,
    Pink,
    Olive,
    Brown,
    Sky,
}

/// Each colour's value on a light page and on a dark page.
const PALETTE: [(Colour, u32, u32); 14] = [
    (Colour::Ink, 0x001f_2328, 0x00e6_edf3),
    (Colour::Muted, 0x0065_6d76, 0x0091_98a1),
    (Colour::Grid, 0x00dd_e2e8, 0x0030_363d),
    (Colour::Paper, 0x00ff_ffff, 0x000d_1117),
    (Colour::Blue, 0x0005_50ae, 0x0058_a6ff),
    (Colour::Red, 0x00cf_222e, 0x00ff_7b72),
    (Colour::Green, 0x001a_7f37, 0x003f_b950),
    (Colour::Orange, 0x00d4_7b00, 0x00f0_a83e),
    (Colour::Purple, 0x0082_50df, 0x00bc_8cff),
    (Colour::Teal, 0x0000_8a8a, 0x0039_c5c5),
    (Colour::Pink, 0x00bf_3989, 0x00f7_78ba),
    (Colour::Olive, 0x007d_7a00, 0x00c9_c54a),
    (Colour::Brown, 0x007a_4a2b, 0x00c8_956c),
    (Colour::Sky, 0x0033_9af0, 0x0091_d0ff),
];

/// Colours for series of one kind, in the order of use.
pub const SERIES: [Colour; 10] = [
    Colour::Blue,
    Colour::Red,
    Colour::Green,
    Colour::Orange,
    Colour::Purple,
    Colour::Teal,
    Colour::Pink,
    Colour::Olive,
    Colour::Brown,
    Colour::Sky,
];

impl Colour {
    /// The colour's value on a light page.
    pub fn light(self) -> RGBColor {
        let [_, red, green, blue] = PALETTE[self as usize].1.to_be_bytes();
        RGBColor(red, green, blue)
    }
}

/// A style sheet that outlines text. For readers with a dark theme, it replaces the light colours with the dark colours.
pub fn style() -> String {
    let mut style =
        String::from("text{paint-order:stroke;stroke:#ffffff;stroke-width:10;stroke-linejoin:round}");
    style += "@media (prefers-color-scheme: dark){text{stroke:#0d1117}";
    for (_, light, dark) in PALETTE {
        for attribute in ["fill", "stroke"] {
            write!(style, "[{attribute}=\"#{light:06X}\"]{{{attribute}:#{dark:06x}}}")
                .expect("writing to a string cannot fail");
        }
    }
    style + "}"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_colour_is_at_its_place_and_unique() {
        for (index, (colour, light, _)) in PALETTE.iter().enumerate() {
            assert_eq!(*colour as usize, index);
            assert_eq!(PALETTE.iter().filter(|(_, other, _)| other == light).count(), 1);
        }
    }
}
