// AVX-512 VNNI: unsigned weight quants times int8 activations. One VPDPBUSD takes four inputs of sixteen columns; the four
// activation bytes of a row are broadcast from memory.
//
// Before this text stands that of int8 rows; constants beside: NR (sub-blocks of a tile), AHEAD (bytes of weights to
// prefetch ahead, 0 for none).

/// `MR` rows of `subs` sub-blocks.
#[inline(always)]
unsafe fn tile<const MR: usize>(acts: *const u8, w: *const u8, scratch: *mut u8, sub: usize, subs: usize, y: *mut f32, stride: usize) {
    let mut s = 0;
    while subs - s >= NR {
        columns::<MR, NR>(acts, w, scratch, sub, s, y.add(s * 16), stride);
        s += NR;
    }
    while s < subs {
        columns::<MR, 1>(acts, w, scratch, sub, s, y.add(s * 16), stride);
        s += 1;
    }
}

/// `MR` rows of `W` sub-blocks: integer sums of a group in registers, then one or two multiply-adds into f32.
#[inline(never)]
unsafe fn columns<const MR: usize, const W: usize>(
    acts: *const u8,
    w: *const u8,
    scratch: *const u8,
    sub: usize,
    s: usize,
    y: *mut f32,
    stride: usize,
) {
    let mut record = [w; W];
    let mut packed = [w; W];
    let mut lane = [0usize; W];
    for j in 0..W {
        (packed[j], lane[j]) = place(w, sub + s + j);
        record[j] = if UNPACKED { scratch.add((s + j) * GROUPS * OPEN_RECORD) } else { packed[j] };
    }
    let mut acc = [[_mm512_setzero_ps(); W]; MR];
    let mut x = acts;
    let mut scales = acts.add(SCALES) as *const f32;
    let mut g = 0;
    while g < GROUPS {
        for j in 0..W {
            prefetch(packed[j], lane[j]);
            packed[j] = packed[j].add(RECORD);
        }
        let mut sums = [[_mm512_setzero_si512(); W]; MR];
        if PASSES == 2 {
            add_steps::<MR, W>(&mut sums, x, &record, &lane);
            for r in 0..MR {
                for j in 0..W {
                    sums[r][j] = _mm512_slli_epi32::<7>(sums[r][j]);
                }
            }
        }
        if !STORED {
            for r in 0..MR {
                let offset = _mm512_set1_epi32(*(scales as *const u8).add(r * ROW + GROUPS * 4).cast::<i32>());
                for j in 0..W {
                    sums[r][j] = if PASSES == 2 { _mm512_add_epi32(sums[r][j], offset) } else { offset };
                }
            }
        }
        add_steps::<MR, W>(&mut sums, x.add((PASSES - 1) * K), &record, &lane);
        let (mut scale, mut min) = ([_mm512_setzero_ps(); W], [_mm512_setzero_ps(); W]);
        for j in 0..W {
            if UNPACKED {
                let f = record[j].add(GROUP * 16) as *const f32;
                scale[j] = _mm512_loadu_ps(f);
                if STORED {
                    min[j] = _mm512_loadu_ps(f.add(16));
                }
            } else {
                scale[j] = halves(record[j].add(lane[j] * 2));
                if STORED {
                    min[j] = halves(record[j].add(NB * 2 + lane[j] * 2));
                }
            }
        }
        for r in 0..MR {
            let d = _mm512_set1_ps(*(scales as *const u8).add(r * ROW).cast::<f32>());
            for j in 0..W {
                acc[r][j] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums[r][j]), d), scale[j], acc[r][j]);
            }
            if STORED {
                let t = _mm512_set1_ps(*(scales as *const u8).add(r * ROW + GROUPS * 4).cast::<f32>());
                for j in 0..W {
                    acc[r][j] = _mm512_fmadd_ps(t, min[j], acc[r][j]);
                }
            }
        }
        for j in 0..W {
            record[j] = record[j].add(if UNPACKED { OPEN_RECORD } else { RECORD });
        }
        x = x.add(GROUP);
        scales = scales.add(1);
        g += 1;
    }
    for r in 0..MR {
        for j in 0..W {
            _mm512_storeu_ps(y.add(r * stride + j * 16), acc[r][j]);
        }
    }
}

/// Adds the products of one record to the integer sums.
#[inline(always)]
unsafe fn add_steps<const MR: usize, const W: usize>(
    sums: &mut [[__m512i; W]; MR],
    x: *const u8,
    record: &[*const u8; W],
    lane: &[usize; W],
) {
    if UNPACKED {
        for step in 0..GROUP / 4 {
            let mut q = [_mm512_setzero_si512(); W];
            for j in 0..W {
                q[j] = load(record[j].add(step * 64));
            }
            add_step::<MR, W>(sums, x.add(step * 4), &q);
        }
        return;
    }
    for l in 0..LINES {
        let (mut low, mut high) = ([_mm512_setzero_si512(); W], [_mm512_setzero_si512(); W]);
        for j in 0..W {
            low[j] = load(record[j].add(HEADER + lane[j] * 4 + l * LINE));
            if BITS == 4 {
                (low[j], high[j]) = nibbles(low[j]);
            }
        }
        if BITS == 4 {
            add_step::<MR, W>(sums, x.add(l * 8), &low);
            add_step::<MR, W>(sums, x.add(l * 8 + 4), &high);
        } else {
            add_step::<MR, W>(sums, x.add(l * 4), &low);
        }
    }
}

#[inline(always)]
unsafe fn add_step<const MR: usize, const W: usize>(sums: &mut [[__m512i; W]; MR], x: *const u8, q: &[__m512i; W]) {
    for r in 0..MR {
        let four = _mm512_set1_epi32(*x.add(r * ROW).cast::<i32>());
        for j in 0..W {
            sums[r][j] = _mm512_dpbusd_epi32(sums[r][j], q[j], four);
        }
    }
}
