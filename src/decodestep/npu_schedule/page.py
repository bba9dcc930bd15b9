"""A timeline as one self-contained HTML file: zoomable chart, details by mouse and keyboard, the critical path in words."""

from __future__ import annotations

from html import escape

from decodestep.npu_schedule.critical import critical_path, utilisation
from decodestep.npu_schedule.gantt import KERNELS, LABELS, STYLE, drawing, height_of, labels, title, used_kernels
from decodestep.npu_schedule.instructions import CUBE, VECTOR
from decodestep.npu_schedule.timeline import Timeline

_WIDTH = 1000  # of the drawing before it is scaled
_CSS = """
:root{color-scheme:light dark;--paper:#ffffff;--ink:#1c2128;--faint:#5c6570;--line:#d9dee4;--panel:#f4f6f8;--lit:#d0021b}
@media (prefers-color-scheme:dark){:root{--paper:#14181d;--ink:#e4e8ed;--faint:#98a2ae;--line:#333b45;--panel:#1c2229;
--lit:#ff6b6b}}
*{box-sizing:border-box}
body{margin:0;padding:20px;background:var(--paper);color:var(--ink);
font:15px/1.45 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:20px;margin:0 0 2px}h2{font-size:15px;margin:22px 0 6px}p{margin:4px 0}.faint{color:var(--faint)}
.bar-line{display:flex;flex-wrap:wrap;gap:6px 14px;align-items:center;margin:12px 0 8px}
.key{display:inline-flex;align-items:center;gap:5px;font-size:13px}.key i{width:11px;height:11px;border-radius:2px}
.key i.wait{border:1px dashed var(--faint)}.key i.lit{border:2px solid var(--lit)}
button{font:inherit;font-size:13px;padding:3px 10px;border:1px solid var(--line);border-radius:6px;background:var(--panel);
color:var(--ink);cursor:pointer}
button:focus-visible,.scroll:focus-visible{outline:2px solid var(--lit);outline-offset:1px}
#details{position:sticky;top:0;z-index:2;min-height:3.2em;padding:8px 12px;border:1px solid var(--line);border-radius:8px;
background:var(--panel);font-size:14px}
.frame{display:flex;margin-top:10px;border:1px solid var(--line);border-radius:8px;overflow:hidden}
.names{flex:none}.scroll{flex:1;min-width:0;overflow-x:auto}
.chart{display:block}.chart rect,.chart line{vector-effect:non-scaling-stroke}.dim .bar:not(.lit){opacity:.22}
.bar:hover{stroke:var(--ink);stroke-width:1.5}.bar.at{stroke:var(--ink);stroke-width:2.2;stroke-dasharray:none}
ol{padding-left:22px;margin:4px 0}li{margin:2px 0;overflow-wrap:anywhere}
.table{overflow-x:auto}table{border-collapse:collapse;font-size:14px}td,th{padding:3px 12px 3px 0;text-align:right}
td:first-child,th:first-child{text-align:left}th{color:var(--faint);font-weight:500}
@media (max-width:640px){body{padding:12px}.names{width:72px;overflow:hidden}.share{display:none}}
"""
_SCRIPT = """
const scroll=document.querySelector('.scroll'),svg=document.getElementById('bars'),details=document.getElementById('details');
const bars=[...svg.querySelectorAll('.bar')],rows=[];let at=null,zoom=1;
for(const b of bars){let r=rows.find(r=>r[0].dataset.core===b.dataset.core);if(r)r.push(b);else rows.push([b]);}
const x=b=>+b.getAttribute('x'),mid=b=>x(b)+ +b.getAttribute('width')/2;
rows.sort((a,b)=>+a[0].getAttribute('y')- +b[0].getAttribute('y'));for(const r of rows)r.sort((a,b)=>x(a)-x(b));
function show(b){if(at)at.classList.remove('at');at=b;b.classList.add('at');details.textContent=b.dataset.words;}
function size(z){const c=scroll.scrollLeft+scroll.clientWidth/2,old=zoom;zoom=Math.min(64,Math.max(1,z));
const w=Math.max(scroll.clientWidth,560)*zoom;svg.style.width=w+'px';
for(const t of svg.querySelectorAll('text')){const p=t.getAttribute('x'),k=svg.viewBox.baseVal.width/w;
t.setAttribute('transform',`translate(${p} 0) scale(${k} 1) translate(${-p} 0)`);}
scroll.scrollLeft=c*zoom/old-scroll.clientWidth/2;}
function reveal(b){const k=svg.getBoundingClientRect().width/svg.viewBox.baseVal.width,p=mid(b)*k;
if(p<scroll.scrollLeft||p>scroll.scrollLeft+scroll.clientWidth)scroll.scrollLeft=p-scroll.clientWidth/2;
const r=b.getBoundingClientRect(),top=details.getBoundingClientRect().bottom+4;
if(r.top<top)window.scrollBy(0,r.top-top-20);else if(r.bottom>innerHeight-8)window.scrollBy(0,r.bottom-innerHeight+40);}
svg.addEventListener('mouseover',e=>{if(e.target.classList.contains('bar'))show(e.target)});
svg.addEventListener('click',e=>{if(e.target.classList.contains('bar')){show(e.target);scroll.focus()}});
scroll.addEventListener('keydown',e=>{if(e.ctrlKey||e.metaKey||e.altKey)return;
const r=at?rows.find(r=>r.includes(at)):null;let to=null;
if(!at&&e.key.startsWith('Arrow'))to=rows[0]&&rows[0][0];
else if(e.key==='ArrowRight')to=r[r.indexOf(at)+1];else if(e.key==='ArrowLeft')to=r[r.indexOf(at)-1];
else if(e.key==='ArrowDown'||e.key==='ArrowUp'){const o=rows[rows.indexOf(r)+(e.key==='ArrowDown'?1:-1)];
if(o)to=o.reduce((p,c)=>Math.abs(mid(c)-mid(at))<Math.abs(mid(p)-mid(at))?c:p);}
else if(e.key==='+'||e.key==='=')size(zoom*1.5);else if(e.key==='-')size(zoom/1.5);else if(e.key==='0')size(1);else return;
e.preventDefault();if(to){show(to);reveal(to);}});
document.getElementById('in').onclick=()=>size(zoom*1.5);document.getElementById('out').onclick=()=>size(zoom/1.5);
document.getElementById('fit').onclick=()=>size(1);
const path=document.getElementById('path');
path.onclick=()=>path.setAttribute('aria-pressed',svg.classList.toggle('dim'));
addEventListener('resize',()=>size(zoom));size(1);
"""


def page(timeline: Timeline) -> str:
    """The whole page. It loads no resources, so it works from a file and offline."""
    height = height_of(timeline.graph.schedule.cores)
    keys = "".join(f'<span class="key"><i style="background:{KERNELS[k]}"></i>{k}</span>' for k in used_kernels(timeline))
    keys += '<span class="key"><i class="wait"></i>waits</span><span class="key"><i class="lit"></i>critical path</span>'
    path = "".join(f"<li>{escape(segment.words)}</li>" for segment in critical_path(timeline))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>{escape(title(timeline))}</title><style>{_CSS}{STYLE}.chart{{display:block}}</style></head><body>
<h1>{escape(title(timeline))}</h1>
<p class="faint">Schedule: {escape(str(timeline.graph.schedule.design))}. Each row is a core: its computations
above, what it moves below. Times are those of the cost model, not measured.</p>
<div class="bar-line">{keys}</div>
<div class="bar-line"><button id="path" aria-pressed="false">only the critical path</button><button id="in">zoom in</button>
<button id="out">zoom out</button><button id="fit">whole</button>
<span class="faint">keys in the chart: arrows go from bar to bar, + and - zoom, 0 shows the whole</span></div>
<div id="details" role="status" aria-live="polite">Point at a bar, or press an arrow key in the chart: what it computes,
for which tokens and columns, and what it waited for.</div>
<div class="frame"><svg class="chart names" width="{LABELS}" height="{height}">{labels(timeline)}</svg>
<div class="scroll" tabindex="0" role="application" aria-label="chart of {len(timeline.graph.schedule.cores)} cores over time">
<svg id="bars" class="chart" viewBox="0 0 {_WIDTH} {height}" height="{height}" preserveAspectRatio="none">
{drawing(timeline, _WIDTH - 4, titles=False)}</svg></div></div>
<h2>The critical path</h2><ol>{path}</ol>
<h2>How busy the cores are</h2><div class="table"><table>{_shares(timeline)}</table></div>
<script>{_SCRIPT}</script></body></html>
"""


def _shares(timeline: Timeline) -> str:
    shares = utilisation(timeline)
    rows = ["<tr><th>cores</th><th>computing</th><th>moving</th><th>waiting</th><th>idle</th></tr>"]
    for kind in (CUBE, VECTOR):
        every = [u for core, u in shares.items() if core.kind == kind]
        means = [sum(part) / len(every) for part in zip(*every, strict=True)]
        cells = "".join(f"<td>{mean:.1%}</td>" for mean in means)
        rows.append(f"<tr><td>{len(every)} {kind}, on average</td>{cells}</tr>")
    return "".join(rows)
