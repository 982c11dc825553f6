from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyFabric(PythonPackage):
    """Runs commands on other machines by SSH. Spack's own package ends with version 2.5."""

    homepage = "https://www.fabfile.org"
    pypi = "fabric/fabric-3.2.3.tar.gz"

    license("BSD-2-Clause")

    version("3.2.3", sha256="dcbd2c47ad87688facaef5cc11aab6d1ec9ed05645fed97a5de7204d5d17cc44")

    depends_on("py-setuptools", type="build")
    depends_on("py-decorator@5:", type=("build", "run"))
    depends_on("py-deprecated@1.2:", type=("build", "run"))
    depends_on("py-invoke@2", type=("build", "run"))
    depends_on("py-paramiko@2.4:", type=("build", "run"))
