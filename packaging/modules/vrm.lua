-- For Lmod: copy it to MODULEPATH/vrm/@VERSION@.lua, and change the directory if vrm is in another one.
local root = "/opt/vrm/@VERSION@"

help([[@DESCRIPTION@.
`vrm docs` prints the documentation, `vrm help` the commands.]])
whatis("Name: vrm")
whatis("Version: @VERSION@")
whatis("License: MIT")
whatis("Description: @DESCRIPTION@")
whatis("URL: @HOME@")

conflict("vrm")
prepend_path("PATH", pathJoin(root, "bin"))
prepend_path("MANPATH", pathJoin(root, "share/man"))
append_path("MANPATH", "")  -- the system's own pages stay
