"""What `pyproject.toml` cannot say of the wheel: the folders beside the packages go into it, too.

They are `berth_files` there; `provisioning.service.environ.FILES` finds them in either place.
"""

from setuptools import find_namespace_packages, setup

BESIDE = ("templates", "static", "requirements", "docs")

# Also folders without Python files: kernels of the GPU check, an extension of JupyterLab.
code = find_namespace_packages(
    include=["portal*", "provisioning*"], exclude=["*.__pycache__", "*.__pycache__.*"]
)
setup(
    packages=[*code, *(f"berth_files.{name}" for name in BESIDE)],
    package_dir={f"berth_files.{name}": name for name in BESIDE},
    package_data={
        "": ["*"],
        "provisioning.agent.apps": ["*.dist-info/*"],
        "provisioning.agent.jupyter.config": ["*.d/*"],
        **{f"berth_files.{name}": ["**/*"] for name in BESIDE},
    },
)
