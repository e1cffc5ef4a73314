//! A covering array: few combinations in which every pair of levels of two factors occurs.

use std::collections::BTreeSet;

/// (factor, level, later factor, its level).
type Pair = (usize, usize, usize, usize);

/// Combinations, one level per factor, such that any two levels of two different factors meet in one of them. The same for
/// the same `levels`, which says how many each factor has.
pub fn cover(levels: &[usize]) -> Vec<Vec<usize>> {
    let mut missing = all_pairs(levels);
    let mut used: Vec<Vec<usize>> = levels.iter().map(|&count| vec![0; count]).collect();
    let mut rows = Vec::new();
    while let Some(&(first, first_level, second, second_level)) = missing.first() {
        let mut row: Vec<Option<usize>> = vec![None; levels.len()];
        (row[first], row[second]) = (Some(first_level), Some(second_level));
        for factor in 0..levels.len() {
            if row[factor].is_none() {
                let gain = |level: usize| pairs_with(&row, factor, level).filter(|pair| missing.contains(pair)).count();
                // Among equally useful levels the least used one, then the lowest.
                let best = (0..levels[factor]).max_by_key(|&level| {
                    (gain(level), std::cmp::Reverse(used[factor][level]), std::cmp::Reverse(level))
                });
                row[factor] = best;
            }
        }
        let row: Vec<usize> = row.into_iter().flatten().collect();
        missing.retain(|&(a, x, b, y)| row[a] != x || row[b] != y);
        row.iter().enumerate().for_each(|(factor, &level)| used[factor][level] += 1);
        rows.push(row);
    }
    rows
}

fn all_pairs(levels: &[usize]) -> BTreeSet<Pair> {
    let factors = 0..levels.len();
    let two = factors.clone().flat_map(|a| factors.clone().map(move |b| (a, b))).filter(|(a, b)| a < b);
    two.flat_map(|(a, b)| (0..levels[a]).flat_map(move |x| (0..levels[b]).map(move |y| (a, x, b, y)))).collect()
}

/// The pairs that `level` of `factor` forms with the levels already chosen.
fn pairs_with(row: &[Option<usize>], factor: usize, level: usize) -> impl Iterator<Item = Pair> {
    row.iter().enumerate().filter_map(move |(other, chosen)| {
        let chosen = (*chosen)?;
        Some(if other < factor { (other, chosen, factor, level) } else { (factor, level, other, chosen) })
    })
}

/// The pairs that no row has, found without the sets that [`cover`] keeps.
#[cfg(test)]
pub fn uncovered(levels: &[usize], rows: &[Vec<usize>]) -> usize {
    let mut count = 0;
    for b in 1..levels.len() {
        for a in 0..b {
            for x in 0..levels[a] {
                count += (0..levels[b]).filter(|&y| !rows.iter().any(|row| row[a] == x && row[b] == y)).count();
            }
        }
    }
    count
}

#[test]
fn every_pair_of_levels_meets_in_a_row() {
    for levels in [&[2, 2][..], &[3, 3, 3, 3], &[7, 3, 4, 2, 3, 8], &[5, 1, 6, 2], &[1, 1]] {
        let rows = cover(levels);
        assert!(rows.iter().all(|row| row.iter().zip(levels).all(|(level, count)| level < count)));
        assert_eq!(uncovered(levels, &rows), 0, "{levels:?}");
        let mut largest = levels.to_vec();
        largest.sort_unstable();
        let product: usize = largest.iter().rev().take(2).product();
        // Fewer than the product of the two largest factors is impossible.
        assert!((product..=product + product / 2 + 4).contains(&rows.len()), "{levels:?}: {} rows", rows.len());
    }
}

#[test]
fn a_cover_without_its_first_row_is_not_one() {
    let levels = [3, 3, 2];
    let rows = cover(&levels);
    assert!(uncovered(&levels, &rows[1..]) > 0);
}
