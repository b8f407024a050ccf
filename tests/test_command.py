import builtins

import bayesmooth_command


def test_ctrl_c_while_torch_is_loading_ends_in_one_line(monkeypatch, capsys):
    load = builtins.__import__

    def interrupted(name, *rest):
        if name == "bayesmooth.cli":
            raise KeyboardInterrupt
        return load(name, *rest)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    assert bayesmooth_command.main() == 130
    assert capsys.readouterr().err == "bayesmooth: interrupted\n"
