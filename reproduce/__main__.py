"""All verdicts and figures again, from the tables alone: `python -m reproduce [results]`."""

import sys
from pathlib import Path

from reproduce import STUDIES
from reproduce.commands import FACTS, redraw
from reproduce.study import SCALES
from reproduce.style import count_claims, read_studies, write_paper

results = Path(*sys.argv[1:2] or ["results"])
for out in (results / scale for scale in SCALES if (results / scale).is_dir()):
    for name, content in read_studies(out).items():
        redraw(STUDIES[name], out, {key: content[key] for key in FACTS if key in content})
        print(f"{out / name}: {count_claims(read_studies(out)[name]['claims'])}")
write_paper(results)
print(results / "paper.md")
