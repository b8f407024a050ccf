"""All verdicts and figures again, from the tables alone: `python -m reproduce [results]`."""

import sys
from pathlib import Path

from reproduce import STUDIES
from reproduce.commands import FACTS, redraw
from reproduce.study import SCALES
from reproduce.style import count_claims, read_studies, write_paper


def main(results: Path) -> None:
    """Draw and judge every study of every scale in a folder, then write the page of the paper."""
    for out in (results / scale for scale in SCALES if (results / scale).is_dir()):
        for name, content in read_studies(out).items():
            redraw(STUDIES[name], out, {key: content[key] for key in FACTS if key in content})
            print(f"{out / name}: {count_claims(read_studies(out)[name]['claims'])}")
    write_paper(results)
    print(results / "paper.md")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "results"))
