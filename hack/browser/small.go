package main

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/png"
	"maps"
	"slices"
)

// small makes a picture of 256 colours of a PNG: pages have few, and the rest are the edges of letters. That halves
// the file, which is kept in a repository.
func small(picture []byte) ([]byte, error) {
	full, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		return nil, err
	}
	bounds := full.Bounds()
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(full.At(x, y)).(color.RGBA) }
	count := map[color.RGBA]int{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			count[at(x, y)]++
		}
	}
	palette := choose(count)
	index := map[color.RGBA]uint8{}
	for c := range count {
		index[c] = uint8(palette.Index(c))
	}
	few := image.NewPaletted(bounds, palette)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			few.SetColorIndex(x, y, index[at(x, y)])
		}
	}
	var out bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	if err := encoder.Encode(&out, few); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// choose chooses the colours that most pixels have, of those that look alike only the first: else the many greys of
// letters would leave no room for a small sign.
func choose(count map[color.RGBA]int) color.Palette {
	alike := func(c color.RGBA) color.RGBA { return color.RGBA{R: c.R >> 5, G: c.G >> 5, B: c.B >> 5} }
	number := func(c color.RGBA) int { return int(c.R)<<16 | int(c.G)<<8 | int(c.B) }
	colours := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(number(a), number(b)))
	})
	var palette, rest color.Palette
	met := map[color.RGBA]bool{}
	for _, c := range colours {
		if met[alike(c)] {
			rest = append(rest, c)
			continue
		}
		met[alike(c)] = true
		palette = append(palette, c)
	}
	palette = append(palette[:min(200, len(palette))], rest...)
	return palette[:min(256, len(palette))]
}
