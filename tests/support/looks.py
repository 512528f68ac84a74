"""What is looked for in pages, by scripts that run in a browser: what cannot be read, used or seen."""

from __future__ import annotations

# WCAG 2: contrast of small and of large text (24 px, or 18.66 px bold).
CONTRAST = """() => {
  const rgb = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const channel = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const back = rgb(getComputedStyle(e).backgroundColor);
      if (back.length === 3 || back[3] === 1) return back;
    }
    return rgb(getComputedStyle(document.documentElement).backgroundColor);
  };
  const poor = [];
  let seen = 0;
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.getClientRects().length) continue;
    seen += 1;
    const style = getComputedStyle(element);
    const front = luminance(rgb(element.closest("svg") ? style.fill : style.color));
    const back = luminance(behind(element));
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) poor.push([element.tagName, element.textContent.slice(0, 40), ratio]);
  }
  return {poor, seen};
}"""
# Takes the width of the window: what stands in no box that scrolls must end within the page.
STICKING_OUT = """w => [...document.querySelectorAll('body *')]
  .filter(e => !e.closest('.scroll, pre') && e.getClientRects().length)
  .filter(e => e.getBoundingClientRect().right > w + 0.5).map(e => e.outerHTML.slice(0, 80))"""
OPEN_ALL = "() => document.querySelectorAll('details').forEach(part => { part.open = true; })"
# Of what can be used: a reader that sees nothing has to be told what it is.
NAMELESS = """() => [...document.querySelectorAll('button, a[href], summary')]
  .filter(e => e.getClientRects().length && !(e.getAttribute('aria-label') || '').trim() && !e.textContent.trim())
  .filter(e => !e.querySelector('img[alt]:not([alt=""])'))
  .map(e => e.outerHTML.slice(0, 120))"""
# Of controls that take something: what a placeholder or a tip says is no label.
UNLABELLED = """() => [...document.querySelectorAll('input:not([type=hidden]), select, textarea')]
  .filter(e => !(e.getAttribute('aria-label') || '').trim()
    && ![...(e.labels || [])].some(label => label.textContent.trim())
    && !(e.getAttribute('aria-labelledby') || '').split(' ').some(id => document.getElementById(id)))
  .map(e => e.outerHTML.slice(0, 120))"""
# One h1, and none that goes down by two levels.
HEADINGS = """() => {
  const levels = [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')]
    .filter(e => e.getClientRects().length).map(e => [Number(e.tagName[1]), e.textContent.trim().slice(0, 40)]);
  const wrong = levels.filter(([level], k) => level > (k ? levels[k - 1][0] : 0) + 1);
  if (levels.filter(([level]) => level === 1).length !== 1) wrong.push([1, `of ${levels.length}`]);
  return wrong;
}"""
# The same id twice would tie a label to another field than it stands at.
DOUBLE_IDS = """() => {
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  return ids.filter((id, k) => ids.indexOf(id) !== k);
}"""
# What the policy of the pages would refuse, whether or not a browser says so.
INLINE = """() => [...document.querySelectorAll('*')]
  .filter(e => e.getAttributeNames().some(n => n === 'style' || n.startsWith('on'))
    || (e.tagName === 'SCRIPT' && !e.src) || e.tagName === 'STYLE')
  .map(e => e.outerHTML.slice(0, 120))"""
