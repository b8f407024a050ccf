import signal
import subprocess
import sys

import pytest

NOTICED = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv = ["bayesmooth", "reproduce", "sigmoid-noise", "--scale", "smoke"]
from bayesmooth.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("name", ["torch", "pandas", "matplotlib.figure"])
def test_ctrl_c_while_a_compiled_module_is_loaded_raises_nothing_inside_it(name, tmp_path):
    line = [sys.executable, "-c", NOTICED.format(name=name)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    assert not list(tmp_path.iterdir())


def test_ctrl_c_after_the_work_changes_nothing():
    code = (
        "import os, signal, sys; sys.argv = ['bayesmooth', 'recipes']; from bayesmooth.cli import main;"
        "code = main(); os.kill(os.getpid(), signal.SIGINT); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
