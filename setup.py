"""Add folders beside the packages to the wheel, which `pyproject.toml` cannot express.

In the wheel they are below `berth_files`; `provisioning.service.environ.FILES` locates them.
"""

from setuptools import find_namespace_packages, setup

DATA_FOLDERS = ("templates", "static", "requirements", "docs")

# Also folders without Python files: kernels of the GPU check, an extension of JupyterLab.
code = find_namespace_packages(
    include=["portal*", "provisioning*"], exclude=["*.__pycache__", "*.__pycache__.*"]
)
setup(
    packages=[*code, *(f"berth_files.{name}" for name in DATA_FOLDERS)],
    package_dir={f"berth_files.{name}": name for name in DATA_FOLDERS},
    package_data={
        "": ["*"],
        "provisioning.agent.apps": ["*.dist-info/*"],
        "provisioning.agent.jupyter.config": ["*.d/*"],
        **{f"berth_files.{name}": ["**/*"] for name in DATA_FOLDERS},
    },
)
