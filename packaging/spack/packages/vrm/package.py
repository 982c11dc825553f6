from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class Vrm(PythonPackage):
    """A virtual resource manager: one batch job runs the user's own queue of MPI jobs, by the user's own order,
    backfilling and placement. The same policies also run in virtual time."""

    homepage = "@HOME@"
    url = "@FILES@/vrm-@VERSION@.tar.gz"

    license("MIT")

    version("@VERSION@", sha256="@SHA256@")

    variant("plots", default=False, description="Pictures and HTML reports")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-argcomplete@3", type=("build", "run"))
    depends_on("py-clustershell@1.9:1", type=("build", "run"))
    depends_on("py-fabric@3.2:3", type=("build", "run"))
    depends_on("py-numpy@1.23:2", type=("build", "run"))
    depends_on("py-prettytable@3.3:3", type=("build", "run"))
    depends_on("py-psutil@5.9:7", type=("build", "run"))
    depends_on("py-pydantic@2.10:2", type=("build", "run"))
    depends_on("py-pyyaml@6", type=("build", "run"))

    with when("+plots"):
        depends_on("py-matplotlib@3.7:3", type=("build", "run"))
        depends_on("py-jinja2@3", type=("build", "run"))
