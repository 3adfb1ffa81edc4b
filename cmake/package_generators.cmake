# Read by cpack when it runs (CPackConfig.cmake): which packages the programs of that moment can make.
# CPack's Debian generator runs dpkg, dpkg-shlibdeps and file.
set(CPACK_GENERATOR TGZ)
set(_missing "")
foreach(_program dpkg dpkg-shlibdeps file)
    find_program(_path_of_${_program} ${_program} NO_CACHE)
    if(NOT _path_of_${_program})
        list(APPEND _missing ${_program})
    endif()
endforeach()
if(_missing)
    list(JOIN _missing ", " _missing)
    message(NOTICE "No Debian packages, but only an archive: missing ${_missing} "
                   "(Debian: dpkg-dev and file)")
else()
    list(APPEND CPACK_GENERATOR DEB)
endif()
