"""How the page of a run looks: on narrow and wide screens, on light and dark ones."""

STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1f2328; --faint: #59636e; --paper: #ffffff; --card: #f6f8fa; --rule: #d1d9e0;
  --color0: #2f66b0; --color1: #c4561a; --color2: #2f8a63; --color3: #7d55ad;
  --color4: #a8324f; --color5: #6b6f16;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6e9ed; --faint: #9aa4af; --paper: #14171b; --card: #1d2127;
    --rule: #3a414a;
    --color0: #7fb0f0; --color1: #f09a5f; --color2: #6cc79e; --color3: #bf9fe6;
    --color4: #ee8aa2; --color5: #cfd06a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 76rem;
  background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, "Liberation Sans", "DejaVu Sans", sans-serif;
}
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .75rem; }
h2 {
  font-size: 1.25rem; margin: 2.5rem 0 .75rem; padding-bottom: .25rem;
  border-bottom: 1px solid var(--rule);
}
h3 { font-size: 1rem; margin: 0; }
h1, h3, dd { overflow-wrap: anywhere; }
p { margin: .5rem 0; color: var(--faint); }
dl {
  display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0;
}
dt { color: var(--faint); }
dd { margin: 0; }
.wide { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .9rem .25rem 0; text-align: left; white-space: nowrap; }
tr > :last-child { padding-right: 0; }
@media (max-width: 32rem) {
  table { font-size: .8rem; }
  th, td { padding-right: .5rem; }
}
.texts0 :is(td, th), .texts1 :is(td, th):nth-child(n+2),
.texts2 :is(td, th):nth-child(n+3) { text-align: right; }
th { font-weight: normal; }
tbody th, .texts2 td:nth-child(2) { white-space: normal; }
thead th { color: var(--faint); border-bottom: 1px solid var(--rule); }
tbody tr + tr > * { border-top: 1px solid var(--rule); }
.curves {
  display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr));
}
figure { margin: 0; padding: .75rem; background: var(--card); border-radius: .5rem; }
figure p { font-size: .85rem; }
figcaption { display: flex; flex-wrap: wrap; gap: .1rem 1rem; align-items: baseline; }
.legend { font-size: .9rem; color: var(--faint); }
.swatch {
  display: inline-block; width: 1.1rem; height: .22rem; margin-right: .4rem;
  vertical-align: middle; border-radius: 1px; background: currentColor;
}
svg { display: block; width: 100%; height: auto; margin-top: .25rem; }
svg text { fill: var(--faint); font-size: 12px; font-variant-numeric: tabular-nums; }
.grid { stroke: var(--rule); stroke-width: 1; }
.curve polyline {
  fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round;
}
.curve polygon { fill: currentColor; fill-opacity: .2; }
.curve circle { fill: currentColor; }
.curve circle.unseen { fill-opacity: 0; }
.curve circle:hover { fill-opacity: 1; }
.color0 { color: var(--color0); } .color1 { color: var(--color1); }
.color2 { color: var(--color2); } .color3 { color: var(--color3); }
.color4 { color: var(--color4); } .color5 { color: var(--color5); }
img {
  display: block; max-width: 100%; height: auto; border-radius: .25rem;
  background: #fff;
}
figure img { margin-top: .5rem; }
.pictures {
  display: grid; gap: 1rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr));
}
summary { cursor: pointer; padding: .25rem 0; }
pre {
  margin: .5rem 0; padding: .75rem; overflow-x: auto; background: var(--card);
  border-radius: .5rem; font-size: .85rem; line-height: 1.45;
}
pre.wrapped { white-space: pre-wrap; overflow-wrap: anywhere; }
"""

NUM_COLORS = 6
