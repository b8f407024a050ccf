import signal
import subprocess
import sys

NOTICED = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv = ["bayesmooth", "reproduce", "sigmoid-noise", "--scale", "smoke"]
from bayesmooth.cli import main
sys.exit(main())
"""


def test_ctrl_c_while_a_compiled_module_is_loaded_raises_nothing_inside_it(tmp_path):
    done = subprocess.run([sys.executable, "-c", NOTICED], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    assert not list(tmp_path.iterdir())
