'use strict';
// The distribution of a token under other settings. `exact` is false if a cut falls among the tokens that the page does not hold,
// or if their total at this temperature is not known.
// token: as in data.py. settings: {temperature, top_k, top_p, min_p}; order: the order of these names; grid: the temperatures of
// token.tail. Returns {kept, probabilities, others, left, token, exact, reasons}: arrays are in the order of token.ids; left and
// the drawn token are null if not known.
function whatIf(token, settings, order, grid, greedy) {
  const tail = token.tail, entry = scoresAt(token, token.entry), reasons = [];
  let s = entry.map(v => v === null ? -Infinity : Math.fround(v));
  let tailTop = tail.count ? Math.fround(tail.max) : -Infinity, at = grid.indexOf(1);
  let rest = tail.count ? 'all' : 'none';  // of the tokens that the page does not hold; 'some' where a cut falls among them
  const alive = () => s.map((v, i) => i).filter(i => s[i] > -Infinity);
  const sorted = () => alive().sort((a, b) => s[b] - s[a] || token.ids[a] - token.ids[b]);
  const top = () => Math.max(tailTop, ...s);
  const weight = v => v === Infinity ? 1 : Math.exp(v - top());
  let about = null;  // with 'some': the approximate mass of those that are kept
  const restMass = () => {
    if (rest === 'none') return 0;
    if (about !== null) return about;
    if (at >= 0) return tail.masses[at];
    let high = grid.findIndex(t => t > settings.temperature);  // interpolated between two known temperatures
    if (high < 0) high = grid.length - 1;
    const low = Math.max(high - 1, 0), a = Math.log(tail.masses[low] || 1e-300), b = Math.log(tail.masses[high] || 1e-300);
    const share = low === high ? 0 : (settings.temperature - grid[low]) / (grid[high] - grid[low]);
    return Math.exp(a + (b - a) * share);
  };
  const unsure = why => { if (!reasons.includes(why)) reasons.push(why); };
  const needRest = () => { if (rest === 'all' && at < 0) unsure('the other tokens\' total at this temperature is estimated'); };
  const drop = keep => { s = s.map((v, i) => keep.has(i) ? v : -Infinity); };
  // Keeps the first `count` of the ranking: exact if the last of them is above every token that the page does not hold.
  const cutTo = (ranked, count, why) => {
    const last = s[ranked[count - 1]];
    drop(new Set(ranked.slice(0, count)));
    if (rest === 'none' || last > tailTop) rest = 'none'; else { rest = 'some'; unsure(why); }
  };
  const steps = {
    temperature() {
      const t = Math.fround(settings.temperature);
      if (settings.temperature === 1) return;
      about = null; at = grid.indexOf(settings.temperature);
      if (top() === Infinity) { s = s.map(v => v < Infinity ? -Infinity : v); rest = 'none'; return; }  // nothing beside it counts
      const highest = top(), overflows = !Number.isFinite(Math.fround(highest / t));
      const cooled = v => Math.fround(overflows ? (v - highest) / settings.temperature : v / t);
      s = s.map(cooled); tailTop = cooled(tailTop);
      if (tailTop === -Infinity) rest = 'none';
    },
    top_k() {
      const k = Math.floor(settings.top_k), ranked = sorted();
      if (k <= 0 || k >= ranked.length + (rest === 'none' ? 0 : tail.count)) return;
      if (k > ranked.length) { rest = 'some'; return unsure('top-k reaches tokens that the page does not hold'); }
      const kth = s[ranked[k - 1]];
      cutTo(ranked, ranked.filter(i => s[i] >= kth).length, 'top-k reaches tokens that the page does not hold');
    },
    top_p() {
      if (settings.top_p >= 1) return;
      const ranked = sorted(), why = 'top-p reaches tokens that the page does not hold';
      needRest();
      const total = ranked.reduce((sum, i) => sum + weight(s[i]), 0) + restMass();
      let sum = 0, count = 0;
      while (count < ranked.length && (count < 1 || sum < settings.top_p * total)) sum += weight(s[ranked[count++]]);
      const reached = sum >= settings.top_p * total || rest === 'none';
      if (reached) cutTo(ranked, count, why);
      else { rest = 'some'; about = settings.top_p * total - sum; unsure(why); }  // accurate to one of those tokens
    },
    min_p() {
      if (settings.min_p <= 0) return;
      const least = settings.min_p, ranked = sorted();
      drop(new Set(ranked.filter((i, n) => n < 1 || weight(s[i]) >= least)));
      if (rest !== 'none') {
        if (weight(tailTop) < least) rest = 'none';
        else { rest = 'some'; unsure('min-p reaches tokens that the page does not hold'); }
      }
    },
  };
  for (const name of order) steps[name]();
  needRest();
  const kept = s.map(v => v > -Infinity), mass = restMass();
  const total = s.reduce((sum, v) => sum + (v > -Infinity ? weight(v) : 0), 0) + mass;
  const exact = reasons.length === 0;
  let best = -1, score = -Infinity;
  if (exact) {
    const infinite = top() === Infinity;  // tokens at infinity are drawn by their noise alone
    s.forEach((v, i) => {
      const noise = greedy || !token.noise ? 0 : token.noise[i];
      const race = v === -Infinity || infinite && v < Infinity ? -Infinity : infinite ? noise : v + noise;
      if (race > score || race === score && race > -Infinity && token.ids[i] < best) { score = race; best = token.ids[i]; }
    });
    const other = rest === 'all' && at >= 0 ? tail.best[at] : null;
    if (other && (other[1] > score || other[1] === score && other[0] < best)) best = other[0];
  }
  return {
    kept, probabilities: s.map(v => v > -Infinity ? weight(v) / total : 0), others: mass / total, exact, reasons,
    left: exact ? kept.filter(Boolean).length + (rest === 'all' ? tail.count : 0) : null, token: exact ? best : null,
  };
}

// The scores of the held tokens after a number of steps; null for a dropped token.
function scoresAt(token, stage) {
  let scores = token.start.scores;
  for (const step of token.steps.slice(0, stage))
    if (step.scores) scores = step.scores;
    else if (step.gone.length) { scores = scores.slice(); for (const i of step.gone) scores[i] = null; }
  return scores;
}

// Their log-probabilities there: null for a dropped token, and beside an infinite score for a finite one. They tell candidates
// apart whose probabilities are too small for a number.
function logProbabilitiesAt(token, stage) {
  const about = stage ? token.steps[stage - 1] : token.start, scores = scoresAt(token, stage);
  const infinite = scores.filter(v => v > 3.45e38).length;
  return scores.map(v => v === null ? null
    : infinite ? (v > 3.45e38 ? Math.log((1 - about.others) / infinite) : null) : Math.fround(v) - about.norm);
}

// Their probabilities there: 0 for a dropped token.
function probabilitiesAt(token, stage) {
  return logProbabilitiesAt(token, stage).map(v => v === null ? 0 : Math.exp(v));
}
