#%Module
# For Environment Modules: copy it to MODULEPATH/vrm/@VERSION@, and change the directory if vrm is in another one.
set root /opt/vrm/@VERSION@

proc ModulesHelp { } {
    puts stderr {@DESCRIPTION@.
`vrm docs` prints the documentation, `vrm help` the commands.}
}
module-whatis {Name: vrm}
module-whatis {Version: @VERSION@}
module-whatis {License: MIT}
module-whatis {Description: @DESCRIPTION@}
module-whatis {URL: @HOME@}

conflict vrm
prepend-path PATH $root/bin
prepend-path MANPATH $root/share/man
append-path MANPATH {}
